"""The run's figures: measured once, here, for the loggers, the progress display and the summary."""

import time
from math import inf, isfinite
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from tinygpt.data.batches import Batch
from tinygpt.errors import UserError
from tinygpt.training.interrupt import Interrupted
from tinygpt.training.module import LanguageModel


class Metrics(pl.Callback):
    """Counts tokens and seconds, averages the training loss, remembers the validations.

    Times are training's own: neither validation nor the saving of checkpoints is in them.

    Args:
        log_every: optimizer steps between two records of the training loss; between them nothing waits for a GPU.
        tokens_per_epoch: targets of the training split.
    """

    def __init__(self, log_every: int, tokens_per_epoch: int) -> None:
        if log_every < 1:
            raise ValueError(f"log_every must be at least 1, got {log_every}")
        self.log_every = log_every
        self.tokens_per_epoch = tokens_per_epoch
        self.step = 0
        self.tokens_seen = 0  # targets; padding is none
        self.train_seconds = 0.0
        self.train_loss: float | None = None  # mean over the steps since the record before
        self.tokens_per_second = 0.0  # since the record before
        self.val_loss: float | None = None
        self.val_bits_per_byte: float | None = None
        self.best_val_loss: float | None = None
        self.best_val_bits_per_byte: float | None = None
        self.lr = 0.0  # of the last step
        self._losses: list[Tensor] = []
        self._running_since: float | None = None  # None while training rests
        self._recorded = (0, 0, 0.0)  # step, tokens_seen and train_seconds of the last record

    @property
    def epoch(self) -> float:
        return self.tokens_seen / self.tokens_per_epoch

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._running_since is None:
            self._running_since = time.monotonic()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self.lr = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.tokens_seen += batch.n_targets
        self._losses.append(outputs["loss"])  # Lightning has divided it by the number of accumulated batches
        if trainer.global_step == self.step:
            return  # in the middle of an accumulation
        self.step = trainer.global_step
        if self.step % self.log_every == 0 or self.step == trainer.max_steps:
            self._record(trainer, pl_module)
            if not isfinite(self.train_loss or 0.0):
                raise UserError(f"the training loss is {self.train_loss} at step {self.step}; try a lower optimizer.lr")

    def _record(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the record: average the losses since the one before, read the clock, tell the loggers."""
        assert isinstance(pl_module, LanguageModel)
        step, tokens, seconds = self._recorded
        if self.step == step:
            return
        self.train_loss = torch.stack(self._losses).sum().item() / (self.step - step)
        self._losses = []
        self._read_clock()  # after the line above, which waits for the GPU
        self.tokens_per_second = (self.tokens_seen - tokens) / (self.train_seconds - seconds)
        self._recorded = (self.step, self.tokens_seen, self.train_seconds)
        figures = {
            "train_loss": self.train_loss,
            "lr": self.lr,
            "tokens_seen": self.tokens_seen,
            "epoch": self.epoch,
            "tokens_per_second": self.tokens_per_second,
            "train_seconds": self.train_seconds,
        }
        if pl_module.grad_norm is not None:
            figures["grad_norm"] = pl_module.grad_norm.item()
        for logger in trainer.loggers:
            logger.log_metrics(figures, self.step)

    def _read_clock(self) -> None:
        if self._running_since is not None:
            now = time.monotonic()
            self.train_seconds += now - self._running_since
            self._running_since = now

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._record(trainer, pl_module)
        self._read_clock()
        self._running_since = None  # until the next training batch

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Interrupted):
            self._record(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.val_loss = trainer.callback_metrics["val_loss"].item()
        self.val_bits_per_byte = trainer.callback_metrics["val_bits_per_byte"].item()
        best = inf if self.best_val_loss is None else self.best_val_loss
        if self.val_loss < best:  # a NaN is below nothing
            self.best_val_loss, self.best_val_bits_per_byte = self.val_loss, self.val_bits_per_byte
        for logger in trainer.loggers:
            figures = {"val_loss": self.val_loss, "val_bits_per_byte": self.val_bits_per_byte}
            logger.log_metrics(figures, self.step)
