"""When a checkpoint is written, and which ones are kept."""

import os
import shutil
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks
from lightning.pytorch.plugins import CheckpointIO

from tinygpt import files
from tinygpt.checkpoint import load, write
from tinygpt.errors import UserError, one_line
from tinygpt.training.interrupt import Interrupted


class CheckpointFiles(CheckpointIO):
    """Lightning's checkpoints as `tinygpt.checkpoint` writes and reads them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write(Path(path), checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink()


class Checkpoint(callbacks.Checkpoint):
    """Keeps `last.ckpt` after every validation, the last one at the end, and the best by validation loss.

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

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "saved_step": self.saved_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"][: self.keep]
        self.saved_step = state_dict["saved_step"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for path in self.directory.glob(f"*{files.UNFINISHED}"):  # of a run that was killed
            path.unlink()
        if self.saved_step is not None:
            self._arrange(_step(self.best_path))  # it may have been killed before it came to that

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        val_loss = trainer.callback_metrics["val_loss"].item()
        was_best = self.best[0][1] if self.best else None
        if isfinite(val_loss):
            self.best = sorted([*self.best, (val_loss, trainer.global_step)])[: self.keep]  # of equal ones the earlier
        self._save_last(trainer)
        self._arrange(was_best)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        # Interrupted is raised between two steps: the state is whole. Before the first one it is not restored yet.
        if isinstance(exception, Interrupted) and trainer.global_step > (self.saved_step or 0):
            try:
                self._save_last(trainer)
            except OSError as error:  # a full disk: the run is to stop all the same
                print(f"train.py: the last steps could not be saved: {one_line(error)}", file=sys.stderr)

    def _save_last(self, trainer: pl.Trainer) -> None:
        before, self.saved_step = self.saved_step, trainer.global_step  # the checkpoint says its own
        try:
            trainer.save_checkpoint(self.last_path)
        except BaseException:
            self.saved_step = before
            raise

    def _arrange(self, was_best: int | None) -> None:
        """Give the last checkpoint its place among the best, and drop those that are of them no more.

        Killed anywhere in it, it is done again when the run goes on.

        Args:
            was_best: the step whose checkpoint best.ckpt is; None: there is none.
        """
        kept = [step for _, step in self.best]
        if kept and kept[0] == self.saved_step != was_best:
            if was_best in kept:
                _link(self.best_path, self._step_path(was_best))
            _link(self.last_path, self.best_path)
        if self.saved_step in kept[1:]:
            _link(self.last_path, self._step_path(self.saved_step))
        for path in set(self.directory.glob("step-*.ckpt")) - {self._step_path(step) for step in kept[1:]}:
            path.unlink()


def _step(path: Path) -> int | None:
    """The step of a checkpoint; None where there is none that can be read."""
    try:
        return load(path, mmap=True)["global_step"]
    except UserError:
        return None


def _link(existing: Path, name: Path) -> None:
    """Another name for a finished file: no second copy is written, and replacing one leaves the other alone."""
    if name.exists() and name.samefile(existing):
        return  # a move onto itself would leave both names
    unfinished = name.with_name(name.name + files.UNFINISHED)
    unfinished.unlink(missing_ok=True)
    try:
        os.link(existing, unfinished)
    except OSError:  # a disk without hard links
        with existing.open("rb") as source, files.whole(name) as copy:
            shutil.copyfileobj(source, copy)
    else:
        files.move(unfinished, name)
