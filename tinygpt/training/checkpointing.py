"""When a checkpoint is written, and which ones are kept."""

import os
import shutil
from math import isfinite
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch import callbacks

from tinygpt.training.interrupt import Interrupted

UNFINISHED = ".unfinished"  # the suffix of a file that is still being written


class Checkpoint(callbacks.Checkpoint):
    """Keeps `last.ckpt` after every validation and at the end, and the best by validation loss.

    Args:
        directory: where they lie.
        keep: how many of the best are kept: `best.ckpt`, and the runners-up as `step-NNNNNN.ckpt`.

    Raises:
        ValueError: keep is below 1.
    """

    def __init__(self, directory: str, keep: int = 1) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = Path(directory)
        self.keep = keep
        self.best: list[tuple[float, int]] = []  # (validation loss, step) of those kept, best first
        self.saved_step: int | None = None

    @property
    def last_path(self) -> Path:
        return self.directory / "last.ckpt"

    @property
    def best_path(self) -> Path:
        return self.directory / "best.ckpt"

    def _step_path(self, step: int) -> Path:
        return self.directory / f"step-{step:06d}.ckpt"

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        val_loss, step = trainer.callback_metrics["val_loss"].item(), trainer.global_step
        ranked = sorted([*self.best, (val_loss, step)])[: self.keep]  # of two equal ones the earlier
        kept = isfinite(val_loss) and (val_loss, step) in ranked
        before, self.best = self.best, ranked if kept else self.best
        self._save_last(trainer)
        if kept:
            self._arrange(before, step)

    def _arrange(self, before: list[tuple[float, int]], step: int) -> None:
        """Give the checkpoint of `step`, just saved as the last, its place among the best."""
        if self.best[0][1] == step:
            if before and self.keep > 1:
                _link(self.best_path, self._step_path(before[0][1]))
            _link(self.last_path, self.best_path)
        else:
            _link(self.last_path, self._step_path(step))
        for dropped in set(before) - set(self.best):
            self._step_path(dropped[1]).unlink(missing_ok=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.saved_step != trainer.global_step:
            self._save_last(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Interrupted):  # raised between two steps: the state is whole
            self._save_last(trainer)

    def _save_last(self, trainer: pl.Trainer) -> None:
        # Lightning writes into the system's temporary folder and moves the file, which is a copy where that folder is
        # on another disk: so it goes to a name of its own first, and is renamed within its folder.
        unfinished = self.last_path.with_suffix(UNFINISHED)
        trainer.save_checkpoint(unfinished)
        unfinished.replace(self.last_path)
        self.saved_step = trainer.global_step


def _link(existing: Path, name: Path) -> None:
    """Another name for a finished file: no second copy is written, and replacing one leaves the other alone."""
    unfinished = name.with_suffix(UNFINISHED)
    unfinished.unlink(missing_ok=True)
    try:
        os.link(existing, unfinished)
    except OSError:  # a disk without hard links
        shutil.copyfile(existing, unfinished)
    unfinished.replace(name)
