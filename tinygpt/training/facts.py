"""`facts.json`: where a run's figures come from: its commands, and what the last of them found."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

from tinygpt import __version__, files, hardware
from tinygpt.data.module import TextDataModule
from tinygpt.data.token_file import TokenFile
from tinygpt.tokenizers import Tokenizer

PASSAGE = 256  # tokens of the validation text that the report shows, at the most
PACKAGES = ("torch", "lightning", "datasets", "tokenizers", "hydra-core", "wandb")


def write(path: Path, command: str, tokenizer: Tokenizer, data: TextDataModule, block_size: int, device: str) -> None:
    """Write them; of a run that is gone on with, the commands of before stay in front.

    Args:
        path: the file.
        command: how this process was begun, as it is typed in a shell.
        tokenizer, data: of the run.
        block_size: of the model, more tokens than which are not shown.
        device: that it runs on.
    """
    earlier = json.loads(path.read_text(encoding="utf-8"))["commands"] if path.exists() else []
    memory = hardware.memory(device)
    passage = data.validation.ids[: min(PASSAGE, block_size) + 1]
    facts = {
        "commands": [*earlier, command],
        "machine": {
            "device": device,
            "processor": hardware.name(device),
            "cores": hardware.cores(),
            "memory_gib": memory and round(memory / 2**30, 1),
        },
        "versions": {
            "python": platform.python_version(),
            "tinygpt": __version__,
            **{package: version(package) for package in PACKAGES},
        },
        "data": {
            "vocabulary": tokenizer.vocab_size,
            "training": _split(data.train),
            "validation": _split(data.validation),
            "validated_tokens": data.val_layout.n_targets,
            "passage": passage.tolist(),
        },
    }
    files.write_text(path, json.dumps(facts, indent=2) + "\n")


def _split(tokens: TokenFile) -> dict[str, int | float]:
    n_tokens = len(tokens.ids) - 1
    return {
        "documents": tokens.n_documents,
        "bytes": tokens.n_bytes,
        "tokens": n_tokens,
        "bytes_per_token": tokens.n_bytes / n_tokens,
    }
