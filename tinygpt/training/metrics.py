"""The run's figures: measured once, here, for metrics.csv, the loggers, the progress display and the summary."""

import os
from math import inf, nan
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from tinygpt import files, hardware
from tinygpt.data.batches import Batch
from tinygpt.training.budget import Budget
from tinygpt.training.module import LanguageModel

TRAINED = (
    "train_loss",
    "grad_norm",
    "weight_norm",
    "tokens_seen",
    "epoch",
    "tokens_per_second",
    "utilisation",
    "peak_memory",
    "train_seconds",
)
VALIDATED = ("val_loss", "val_bits_per_byte")

# What goes on with a run that is gone on with.
STATE = (
    "step",
    "skipped_steps",
    "tokens_seen",
    "train_loss",
    "tokens_per_second",
    "val_loss",
    "val_bits_per_byte",
    "best_val_loss",
    "best_val_bits_per_byte",
    "grad_norm",
    "_losses",
    "_recorded",
    "_n_rows",
)


def learning_rates(optimizer: Optimizer) -> dict[str, float]:
    """By what they are called: `lr` the first group's, `lr_NAME` those of groups of another name."""
    groups = [group for group in optimizer.param_groups if group["params"]]
    names = [f"lr_{group['name']}" for group in groups]
    return {name if name != names[0] else "lr": group["lr"] for name, group in zip(names, groups, strict=True)}


class Metrics(pl.Callback):
    """Counts tokens and seconds, averages the training loss, remembers the validations.

    Times are training's own: neither validation nor the saving of checkpoints is in them. Between two records nothing
    here waits for the GPU; the module does once a step, to see that its gradient is a number.

    Args:
        path: metrics.csv, a row a record. A run that is gone on with keeps the rows that its checkpoint counts.
        log_every: optimizer steps between two records of the training loss.
        tokens_per_epoch: targets of the training split.
        budget: whose clock runs while training does.
        flops_per_token: floating-point operations of training on a token.
        peak_flops: the most that the device does in a second; None: nobody knows.
    """

    def __init__(
        self,
        path: Path,
        log_every: int,
        tokens_per_epoch: int,
        budget: Budget,
        *,
        flops_per_token: int,
        peak_flops: float | None = None,
    ) -> None:
        if log_every < 1:
            raise ValueError(f"log_every must be at least 1, got {log_every}")
        self.path = path
        self.log_every = log_every
        self.tokens_per_epoch = tokens_per_epoch
        self.budget = budget
        self.flops_per_token = flops_per_token
        self.peak_flops = peak_flops
        self.step = 0
        self.skipped_steps = 0  # for a loss or a gradient that was no number
        self.tokens_seen = 0  # targets; padding is none
        self.train_loss: float | None = None  # mean over the steps since the record before, but for skipped ones
        self.tokens_per_second = 0.0  # since the record before
        self.val_loss: float | None = None
        self.val_bits_per_byte: float | None = None
        self.best_val_loss: float | None = None
        self.best_val_bits_per_byte: float | None = None
        self.grad_norm: Tensor | float = 0.0  # of the last step, before clipping
        self.weight_norm = 0.0  # at the last record
        self.peak_memory = 0.0  # bytes, until the last record
        self.columns: tuple[str, ...] = ()  # of metrics.csv
        self._losses: list[Tensor] = []  # of the steps since the record before
        self._recorded = (0, 0, 0.0)  # step, tokens_seen and train_seconds of the last record
        self._n_rows = 0  # of metrics.csv
        self._step_losses: list[Tensor] = []  # of the step at hand

    def state_dict(self) -> dict[str, Any]:
        self.budget.read_clock()
        if self.path.exists():  # the rows that are counted here are on the disk before the checkpoint is
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        self.grad_norm = float(self.grad_norm)
        self._losses = [loss.cpu() for loss in self._losses]
        return {name: getattr(self, name) for name in STATE} | {"train_seconds": self.budget.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in STATE:
            setattr(self, name, state_dict[name])
        self.budget.seconds = state_dict["train_seconds"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        hardware.forget_peak_memory(pl_module.device.type)
        self.columns = ("step", *learning_rates(trainer.optimizers[0]), *TRAINED, *VALIDATED)
        rows = self.path.read_text().splitlines()[1 : 1 + self._n_rows] if self.path.exists() else []
        files.write_text(self.path, "\n".join([",".join(self.columns), *rows]) + "\n")
        self._n_rows = len(rows)

    @property
    def train_seconds(self) -> float:
        return self.budget.seconds

    @property
    def utilisation(self) -> float:
        """Share of the peak, since the record before; NaN where that is not known."""
        return self.share(self.tokens_per_second)

    def share(self, tokens_per_second: float) -> float:
        """Of the peak, at this rate."""
        return tokens_per_second * self.flops_per_token / self.peak_flops if self.peak_flops else nan

    @property
    def epoch(self) -> float:
        return self.tokens_seen / self.tokens_per_epoch

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.budget.run()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LanguageModel)
        self.budget.read_clock()  # for the module, which comes after its callbacks
        self.tokens_seen += batch.n_targets
        self._step_losses.append(outputs["loss"])  # Lightning has divided it by the number of accumulated batches
        if trainer.global_step == self.step:
            return  # in the middle of an accumulation
        self.step = trainer.global_step
        if pl_module.skipped:
            self.skipped_steps += 1
        else:
            self._losses.append(torch.stack(self._step_losses).sum())
        self._step_losses = []
        self.grad_norm = pl_module.grad_norm
        if self.step % self.log_every == 0 or self.budget.progress(self.step) >= 1:
            self._record(trainer, pl_module)

    def _record(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the record: average the losses since the one before, read the clock, tell the loggers."""
        assert isinstance(pl_module, LanguageModel)
        step, tokens, seconds = self._recorded
        if self.step == step:
            return
        losses = [loss.to(pl_module.device) for loss in self._losses]
        self.train_loss = torch.stack(losses).mean().item() if losses else nan
        self._losses = []
        self.budget.read_clock()  # after the line above, which waits for the GPU
        self.tokens_per_second = (self.tokens_seen - tokens) / (self.train_seconds - seconds)
        self._recorded = (self.step, self.tokens_seen, self.train_seconds)
        self.weight_norm = pl_module.weight_norm()
        self.peak_memory = hardware.peak_memory(pl_module.device.type)
        self._tell(
            trainer, learning_rates(trainer.optimizers[0]) | {name: float(getattr(self, name)) for name in TRAINED}
        )

    def _tell(self, trainer: pl.Trainer, figures: dict[str, float]) -> None:
        """A row of metrics.csv, and the same for each logger."""
        cells = (str(figures.get(column, "")) for column in self.columns[1:])
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self.step},{','.join(cells)}\n")
        self._n_rows += 1
        for logger in trainer.loggers:
            logger.log_metrics(figures, self.step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._record(trainer, pl_module)
        self.budget.rest()  # until the next training batch

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.val_loss = trainer.callback_metrics["val_loss"].item()
        self.val_bits_per_byte = trainer.callback_metrics["val_bits_per_byte"].item()
        best = inf if self.best_val_loss is None else self.best_val_loss
        if self.val_loss < best:  # a NaN is below nothing
            self.best_val_loss, self.best_val_bits_per_byte = self.val_loss, self.val_bits_per_byte
        self._tell(trainer, {name: float(getattr(self, name)) for name in VALIDATED})
