"""To and from a Hugging Face model folder: config.json and model.safetensors, as `save_pretrained` writes them.

Neither `transformers` nor a pickle is needed. A family's own file in this folder maps names and sizes; what its model
cannot be is refused by name.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinygpt import files
from tinygpt.errors import UserError
from tinygpt.interop import gpt2, qwen3
from tinygpt.model.gpt import GPT
from tinygpt.tokenizers import Tokenizer

FAMILIES = {"gpt2": gpt2, "qwen3": qwen3}  # by the model_type of their configuration


def save_folder(model: GPT, path: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` reads, `AutoTokenizer` too where there is a tokenizer.

    Args:
        model: of a family that `transformers` has.
        path: the folder; it is made where it is not there.
        tokenizer: the one that the model was trained with; its end of text is what ends a text there too.

    Raises:
        UserError: the model has no twin in `transformers`.
    """
    found = [(model_type, family) for model_type, family in FAMILIES.items() if type(model) is family.FAMILY]
    if not found:
        names = ", ".join(family.FAMILY.__name__ for family in FAMILIES.values())
        raise UserError(f"{type(model).__name__} has no twin in transformers; those that have one are: {names}")
    if model.lookups:
        raise UserError(
            "a model that looks ids up has no twin in transformers; train one with model.ngram_rows=null model.match=0"
        )
    if any(model.windows):
        raise UserError(f"a model with windows has no twin in transformers, got window={model.config['window']}")
    model_type, family = found[0]
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    save_file(family.to_state(model), path / "model.safetensors", metadata={"format": "pt"})
    # Theirs have ids of their own for the beginning and the end of a text, unless the configuration says none.
    config = {"model_type": model_type, "architectures": [family.ARCHITECTURE]} | family.to_config(model)
    end_of_text = None if tokenizer is None else tokenizer.end_of_text
    _write_json(path / "config.json", config | {"bos_token_id": None, "eos_token_id": end_of_text})
    if tokenizer is not None:
        files.write_text(path / "tokenizer.json", tokenizer.to_json())
        _write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def load_folder(path: str | Path) -> GPT:
    """The model of a folder, in evaluation mode and in fp32.

    Raises:
        UserError: the folder is none of a model, it or a file in it is damaged, or the model is none that tinygpt has.
    """
    path = Path(path)
    theirs = _read_json(path / "config.json")
    model_type = theirs.get("model_type")
    if model_type not in FAMILIES:
        raise UserError(f"{path} holds a model of type {model_type!r}; tinygpt reads {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    try:
        for key, allowed in family.FIXED.items():
            if theirs.get(key, allowed[0]) not in allowed:
                raise UserError(f"{key} must be {' or '.join(map(repr, allowed))}, got {theirs[key]!r}")
        model = family.FAMILY(**family.from_config(theirs))
    except KeyError as error:
        raise UserError(f"{path / 'config.json'} does not say {error.args[0]}") from error
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'config.json'} describes what tinygpt cannot be: {error}") from error
    _fill(model, family, _read_tensors(path), path)
    return model.eval()


def _fill(model: GPT, family: Any, theirs: dict[str, Tensor], path: Path) -> None:
    try:
        state = family.from_state(theirs, model.config)
    except KeyError as error:
        raise UserError(f"{path} lacks the tensor {error.args[0]}, which its config.json asks for") from error
    head = theirs.pop("lm_head.weight", None)  # still there only where the configuration ties it to the embedding
    if head is not None and not torch.equal(head, state["head.weight"]):
        raise UserError(f"{path}: tie_word_embeddings is true, but lm_head.weight is not the token embedding")
    if theirs:
        raise UserError(f"{path} has tensors that no part of the model is for: {', '.join(sorted(theirs))}")
    for name, parameter in model.state_dict().items():
        if state[name].shape != parameter.shape:
            raise UserError(
                f"{path}: config.json makes {name} {tuple(parameter.shape)}, the file's is {tuple(state[name].shape)}"
            )
    model.load_state_dict(state)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a folder: of one file, or of those that an index names."""
    names, index = ["model.safetensors"], path / "model.safetensors.index.json"
    if index.exists() and not (path / names[0]).exists():
        names = sorted(set(_read_json(index)["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(path / name)
        except FileNotFoundError as error:
            raise UserError(f"{path} has no {name}; only safetensors are read, no pickle is run") from error
        except SafetensorError as error:
            raise UserError(f"{path / name} is damaged: {error}") from error
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}: it is not the folder of a Hugging Face model") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not JSON of an object: {error}") from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    files.write_text(path, json.dumps(content, indent=2) + "\n")
