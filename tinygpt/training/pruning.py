"""Stopping a trial of a sweep that will not be the best."""

from math import inf, isfinite
from pathlib import Path

import lightning.pytorch as pl

from tinygpt.sweep.study import Watched
from tinygpt.training.metrics import Metrics


class Pruning(pl.Callback):
    """Stops a run whose validation is hopeless beside the sweep's other trials.

    Args:
        run_dir: of the trial.
        metrics: of the run, in front of this among the callbacks.
    """

    def __init__(self, run_dir: Path, metrics: Metrics) -> None:
        self.trial = Watched(run_dir)
        self.metrics = metrics

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        m = self.metrics
        assert m.val_bits_per_byte is not None
        value = m.val_bits_per_byte if isfinite(m.val_bits_per_byte) else inf
        if self.trial.hopeless(m.budget.progress(m.step), value):
            trainer.should_stop = True
            print(f"pruned after step {m.budget.of(m.step)}: most trials were better at this point")
