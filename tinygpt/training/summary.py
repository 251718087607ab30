"""`summary.json`: what a run is and what it reached, up to date while it runs."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks

from tinygpt import files
from tinygpt.errors import one_line
from tinygpt.training.checkpointing import Checkpoint
from tinygpt.training.interrupt import Interrupted
from tinygpt.training.metrics import Metrics

NO_LOSS = "no validation loss was a number; try a lower optimizer.lr"
SECONDS_BETWEEN_WRITES = 10


class Summary(callbacks.Checkpoint):
    """Writes the summary at the start, every ten seconds, after each validation, and however the run ends.

    Lightning calls checkpoint callbacks last, in the order of their list: as one of them, behind the one that saves, it
    tells of the checkpoint that has just been written.

    Args:
        path: the file.
        metrics: where the figures are.
        checkpoint: which checkpoint to name.
        facts: what is known before the run: n_parameters, device, precision.
    """

    def __init__(self, path: Path, metrics: Metrics, checkpoint: Checkpoint, facts: dict[str, Any]) -> None:
        self.path = path
        self.metrics = metrics
        self.checkpoint = checkpoint
        self.facts = facts
        self.written = 0.0  # when last

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write("running")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write("running")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.write("running")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.metrics.best_val_loss is not None:
            self.write("completed")
        else:
            self.write("failed", NO_LOSS)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        with suppress(OSError):  # a full disk, it may be, of which the exception tells
            if isinstance(exception, Interrupted | KeyboardInterrupt):
                self.write("interrupted")
            else:
                self.write("failed", one_line(exception))

    def write(self, status: str, reason: str | None = None) -> None:
        """Write it, with this status and why a run failed."""
        self.written = time.monotonic()
        m = self.metrics
        kept = [path for path in (self.checkpoint.best_path, self.checkpoint.last_path) if path.exists()]
        left = 0.0 if status == "completed" else m.budget.seconds_left(m.step) if m.step else None
        rate = m.tokens_seen / m.train_seconds if m.train_seconds else None
        summary = {
            "status": status,
            "reason": reason,
            "step": m.step,
            "skipped_steps": m.skipped_steps,
            "epoch": m.epoch,
            "tokens_seen": m.tokens_seen,
            "train_seconds": m.train_seconds,
            "seconds_left": left,
            "tokens_per_second": rate,
            "flops": m.tokens_seen * m.flops_per_token,
            "utilisation": m.share(rate) if rate else None,
            "train_loss": m.train_loss,
            "val_loss": m.val_loss,
            "val_bits_per_byte": m.val_bits_per_byte,
            "best_val_loss": m.best_val_loss,
            "best_val_bits_per_byte": m.best_val_bits_per_byte,
            **self.facts,
            "checkpoint": str(kept[0]) if kept else None,
        }
        files.write_text(self.path, json.dumps(_finite(summary), indent=2) + "\n")


def _finite(summary: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: such a figure becomes null."""
    return {
        key: None if isinstance(value, float) and not abs(value) < float("inf") else value
        for key, value in summary.items()
    }
