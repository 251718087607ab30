"""Stopping a trial of a sweep that will not be the best."""

from math import inf, isfinite
from pathlib import Path

import lightning.pytorch as pl
from tqdm import tqdm

from tinygpt.sweep.study import RunningTrial
from tinygpt.training.metrics import Metrics


class Pruning(pl.Callback):
    """Stops a run whose validation is below the median of the sweep's other trials.

    Args:
        run_dir: of the trial.
        metrics: of the run, in front of this among the callbacks.

    Attributes:
        pruned: whether it has stopped the run.
    """

    def __init__(self, run_dir: Path, metrics: Metrics) -> None:
        self.trial = RunningTrial(run_dir)
        self.metrics = metrics
        self.pruned = False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        m = self.metrics
        value = getattr(m, self.trial.metric)
        self.pruned = self.trial.report(m.budget.progress(m.step), value if isfinite(value) else inf)
        if self.pruned:
            trainer.should_stop = True
            tqdm.write(f"pruned after step {m.budget.of(m.step)}: most trials were better at this point")
