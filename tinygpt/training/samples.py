"""How a run's samples evolve: the same prompts, continued after every validation."""

import json
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import lightning.pytorch as pl
import torch

from tinygpt import files, hardware
from tinygpt.data.module import TextDataModule
from tinygpt.errors import UserError
from tinygpt.generation.text import TextGenerator
from tinygpt.training.module import LanguageModel

TEMPERATURES = (0.0, 0.8)
BEGINNING = 16  # tokens of the validation text that are a prompt


class Samples(pl.Callback):
    """Continues some prompts at temperatures 0 and 0.8 after every validation, by the weights that were validated.

    They go to samples.jsonl in the run's directory, an object a sample and a line (`step`, `prompt`, `temperature`,
    `text`), and to each logger with a `log_samples`. Training draws the same random numbers as without them.

    Args:
        run_dir: the run's directory.
        prompts: what is continued; None: nothing, and the beginning of the validation text where its tokens are text.
        max_new_tokens: how far.

    Raises:
        ValueError: there is no prompt, or max_new_tokens is below 1.
    """

    def __init__(self, run_dir: str, prompts: list[str] | None = None, max_new_tokens: int = 64) -> None:
        if prompts == []:
            raise ValueError("prompts must name one at least; '~callbacks.samples' does without samples")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        self.path = Path(run_dir) / "samples.jsonl"
        self.prompts = prompts
        self.max_new_tokens = max_new_tokens

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModel)
        data: TextDataModule = trainer.datamodule  # type: ignore[attr-defined]
        encode, decode = pl_module.tokenizer.encode, pl_module.tokenizer.decode
        if self.prompts is None:
            self.prompts = [""]
            with suppress(UserError):  # of a token that stands for no text by itself
                ids = data.validation.ids[1 : 1 + BEGINNING].tolist()
                document = takewhile(lambda token: token != pl_module.tokenizer.end_of_text, ids)
                beginning = decode([*document]).rstrip("\ufffd")  # half a character
                encode(beginning)
                self.prompts.append(beginning)
        for prompt in self.prompts:
            encode(prompt)  # what the tokenizer does not know is an error before anything is trained

    # Not at the validation's end: by then averaged weights have been changed back.
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, LanguageModel)
        assert self.prompts is not None
        generator, step = TextGenerator(pl_module.model, pl_module.tokenizer), trainer.global_step
        samples = []
        # Blocks that are compiled would be compiled again, for rows that grow.
        with hardware.same_random_states(pl_module.device.type), torch.compiler.set_stance("force_eager"):
            for temperature in TEMPERATURES:
                settings = {"max_new_tokens": self.max_new_tokens, "temperature": temperature}
                try:
                    continued = generator.complete(self.prompts, **settings)
                except ValueError:  # the logits are no numbers
                    return
                samples += [
                    {"step": step, "prompt": sample.prompt, "temperature": temperature, "text": sample.text}
                    for sample in continued
                ]
        # Of a run that is gone on with, those of later steps are of what was lost.
        kept = [sample for sample in files.read_json_lines(self.path) if sample["step"] < step]
        lines = (json.dumps(sample, ensure_ascii=False) + "\n" for sample in [*kept, *samples])
        files.write_text(self.path, "".join(lines))
        for logger in trainer.loggers:
            if log_samples := getattr(logger, "log_samples", None):
                log_samples(samples, step)
