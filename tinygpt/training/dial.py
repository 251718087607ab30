"""One dial, `minutes=`: the model for this time, on this machine, for this text, and all that its training needs.

The size was fitted to trainings of several sizes and times on two corpora (`benchmarks/sizes.py`), the rates to the
shortest of them; what was tried stands in `benchmarks/LOG.md`.
"""

import statistics
import time
from collections.abc import Collection
from math import ceil, log2
from typing import Any, NamedTuple

import torch

from tinygpt.config import Config, build
from tinygpt.data.module import TextDataModule
from tinygpt.data.token_file import TokenFile
from tinygpt.errors import UsageError
from tinygpt.tokenizers import Tokenizer
from tinygpt.training.budget import UNLIMITED, written
from tinygpt.training.estimate import Probe

CHOSEN = (
    "model",
    "attention",
    "optimizer",
    "schedule",
    "experiment",
    "debug",
    "init_from",
    "data.batch_size",
    "data.overfit",
    "trainer.max_steps",
    "trainer.max_time",
    "trainer.accumulate_grad_batches",
    "compile",
    "eval_every",
)


class Size(NamedTuple):
    """Of a model: its width, its blocks, the heads in each."""

    n_embd: int
    n_layer: int
    n_head: int


SIZES = (Size(96, 3, 2), Size(128, 4, 2), Size(160, 5, 2), Size(192, 6, 3), Size(256, 8, 4))

BLOCK, ROWS_OF_BLOCK = 1024, 16  # the longest row, where the text has so many of them
FEW = 512  # ids of a vocabulary of characters or bytes, at the most
TABLES = {True: [4096, 32768, 131072, 262144], False: [65536, 262144]}  # by whether there are few ids
RATES = {True: (0.009, 0.011, 0.08), False: (0.008, 0.04, 0.03)}  # likewise, of Muon, AdamW and the tables

COMPILED_FROM, COMPILING = 15, 40  # minutes; seconds that it takes
DROPPED_STEP = 1.17  # times as long a step takes with dropout
ENDING = 6  # seconds of Hydra's start, of writing, of the report and of the sample
WATCHING = 0.02  # of the time, for validations on the way
SHOWING = 2  # seconds that samples and the report take after each
TIMED = 3  # steps, after a first one
LEAST = 20  # steps of a training


def refuse(given: Collection[str]) -> None:
    """Raise UsageError where the command line sets what is chosen here."""
    for key in given:
        if any(key == chosen or key.startswith(f"{chosen}.") for chosen in CHOSEN):
            raise UsageError(f"{key}= does not go with minutes=, which chooses the model and how it is trained")


def family(few: bool) -> dict[str, Any]:
    """What all sizes of the model have in common, by whether the vocabulary has few ids."""
    return {"window": 64, "ngram_rows": TABLES[few], "match": 8, "init": "zero" if few else "xavier"}


def wanted_tokens(parameters: int, few: bool) -> float:
    """Of a training, for so many parameters of the blocks to be better than fewer."""
    return parameters * (2.7 if few else 4.1e-6 * parameters)


def rates(few: bool) -> dict[str, float]:
    """The peak learning rates, by the same; the fewer ids, the more often each one's embedding is moved."""
    return dict(zip(("lr", "adamw_lr", "table_lr"), RATES[few], strict=True))


def regularisation(epochs: float) -> dict[str, float]:
    """What keeps a model from learning by heart a text that it reads so often; read once, tables may know all of it."""
    return {"ngram_dropout": min(0.5, max(0.0, (epochs - 1) / 4)), "dropout": 0.05 if epochs > 3 else 0.0}


def choose(
    cfg: Config,
    minutes: float,
    tokenizer: Tokenizer,
    train: TokenFile,
    validation: TokenFile,
    *,
    device: str,
    precision: str,
    begun: float,
) -> Config:
    """The configuration of the run that takes these minutes, from its command line to its sample.

    Args:
        cfg: the configuration so far; `refuse` has seen to it that nothing chosen here was given.
        minutes: wanted.
        tokenizer, train, validation: the text.
        device, precision: of the run.
        begun: when the command was given, by `time.monotonic`.

    Raises:
        UsageError: so little time is left that nothing would be learned in it.
    """
    few = tokenizer.vocab_size <= FEW
    block = min(BLOCK, max(32, 2 ** int(log2(max(1, len(train.ids) / ROWS_OF_BLOCK)))))
    cfg = cfg | {
        "minutes": None,
        "attention": {"_target_": "tinygpt.attention.sliding_window.SlidingWindow", "block": 64},
        "model": cfg["model"] | {"block_size": block} | family(few),
        "optimizer": cfg["optimizer"] | rates(few),
        "schedule": cfg["schedule"] | {"warmup_steps": 20},
        "compile": minutes >= COMPILED_FROM,
    }

    def trial(size: Size, **model: Any) -> Config:
        return cfg | {"model": cfg["model"] | size._asdict() | model}

    tokens_a_step = BLOCK if few else 2 * BLOCK
    corpus = build(cfg, "data")
    data = TextDataModule(train, validation, corpus=corpus, block_size=block, seed=cfg["seed"])
    tokens_a_row = data.train_layout.n_targets / data.train_layout.n_rows
    corpus.batch_size = max(1, round(tokens_a_step / tokens_a_row))
    tokens_a_step = corpus.batch_size * tokens_a_row

    left = 60 * minutes - ENDING - (COMPILING if cfg["compile"] else 0)
    found: tuple[Size, float, float] | None = None
    for size in SIZES:
        step, validating, parameters = _measured(trial(size), data, tokenizer, device, precision)
        steps = (left - (time.monotonic() - begun) - validating) / step
        if found is not None and steps * tokens_a_step < wanted_tokens(parameters, few):
            break
        found = size, step, validating
    assert found is not None
    size, step, validating = found
    left -= time.monotonic() - begun + validating
    if left < LEAST * step:
        raise UsageError(
            f"minutes={minutes:g} is too little to train: a step takes {step:.2g} s, and"
            f" {60 * minutes - left:.0f} s go by besides,"
            f" {validating:.0f} of them to validate, which data.max_val_tokens=N shortens;"
            f" minutes={ceil(1.1 * (60 * minutes - left + LEAST * step) / 6) / 10:g} would do"
        )
    between = min(int(WATCHING * left / (validating + SHOWING)), 10)
    left -= between * (validating + SHOWING)

    steps = left / step
    regular = regularisation(steps * tokens_a_step / data.train_layout.n_targets)
    if regular["dropout"]:
        steps /= DROPPED_STEP
    print(
        f"minutes={minutes:g}: {size.n_layer} layers of {size.n_embd}, about {steps:,.0f} steps"
        f" of {1000 * step:,.0f} ms on this {device}"
    )
    return trial(size, **regular) | {
        "data": cfg["data"] | {"batch_size": corpus.batch_size},
        "trainer": cfg["trainer"] | {"max_steps": UNLIMITED, "max_time": written(left)},
        # Later than it would be: a machine that turns out to be faster would else validate twice at the end.
        "eval_every": int(1.1 * steps / (between + 1)) if between else int(2 * steps),
    }


def _measured(
    cfg: Config, data: TextDataModule, tokenizer: Tokenizer, device: str, precision: str
) -> tuple[float, float, int]:
    """Seconds of a step and of a validation with this model, and the parameters of its blocks."""
    model = build(cfg, "model", vocab_size=tokenizer.vocab_size, attention=build(cfg, "attention"))
    probe = Probe(model, data, device, precision)
    optimizer = build(cfg, "optimizer", model=model)

    def step() -> None:
        probe.loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    probe.timed(step)
    rows = len(probe.batch.ids)
    seconds = statistics.median(probe.timed(step) for _ in range(TIMED)) * data.corpus.batch_size / rows
    with torch.no_grad():
        validating = statistics.median(probe.timed(probe.loss) for _ in range(TIMED)) * data.val_layout.n_rows / rows
    return seconds, validating, sum(p.numel() for p in model.blocks.parameters())
