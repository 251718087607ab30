"""Stopping a trial of a sweep that will not be the best."""

from math import inf, isfinite
from pathlib import Path

import lightning.pytorch as pl

from tinygpt.sweep.study import RunningTrial
from tinygpt.training.metrics import Metrics


class Pruning(pl.Callback):
    """Stops a run whose validation is worse than the median of the sweep's other trials.

    Args:
        run_dir: of the trial.
        metrics: of the run, in front of this among the callbacks.

    Attributes:
        reason: why the run was stopped; None: it was not.
    """

    def __init__(self, run_dir: Path, metrics: Metrics) -> None:
        self.trial = RunningTrial(run_dir)
        self.metrics = metrics
        self.reason: str | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        m = self.metrics
        value = getattr(m, self.trial.metric)
        if self.trial.report(m.budget.progress(m.step), value if isfinite(value) else inf):
            self.reason = "pruned, for most trials were better at this point"
            trainer.should_stop = True
