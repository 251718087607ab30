"""Stopping a run from outside without losing its last steps."""

import os
import signal
from types import FrameType
from typing import Any, Self

import lightning.pytorch as pl

from tinygpt.signals import SIGNALS


class Interrupted(BaseException):
    """A signal asked the run to stop; raised between two optimizer steps.

    Not an Exception: a sweep goes on after a run that failed, and stops when it is told to.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


class StopOnSignal(pl.Callback):
    """On one of SIGNALS, finish the step at hand and stop; a SIGINT after that stops at once.

    As a context it listens, and puts back what listened before. As a callback it must be the last of those that do
    something after a step: what comes behind it would miss the step that is saved.

    Attributes:
        received: the signal that came first.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.received is not None:
            raise Interrupted(self.received)
        self._listen()  # Lightning has set its own by now, which would end the run with status 0

    def _listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # Not by print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step; one more Ctrl-C stops at once\n")
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
