"""Stopping a run from outside without losing its last steps."""

import signal
import sys
from types import FrameType
from typing import Any

import lightning.pytorch as pl


class Interrupted(BaseException):
    """A signal asked the run to stop; raised between two optimizer steps.

    Not an Exception: a sweep goes on after a run that failed, and stops when it is told to.

    Attributes:
        signal: which one.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)


class StopOnSignal(pl.Callback):
    """On SIGINT (Ctrl-C) or SIGTERM, finish the step at hand and stop; a second SIGINT stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning has set its own handlers by now, and puts back at its teardown what was there before.
        signal.signal(signal.SIGINT, self._remember)
        signal.signal(signal.SIGTERM, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.received is not None and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            raise Interrupted(self.received)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
