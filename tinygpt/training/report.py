"""The run's report, up to date while it runs."""

import sys

import lightning.pytorch as pl
from lightning.pytorch import callbacks

from tinygpt import hardware
from tinygpt.errors import one_line
from tinygpt.training.summary import Summary


class Report(callbacks.Checkpoint):
    """Writes report.html after every validation, and however the run ends; see `tinygpt/report/run.py`.

    As one of the checkpoint callbacks, behind the summary: what it tells of is on the disk by then. A run does not fail
    for want of a report.
    """

    def __init__(self, summary: Summary) -> None:
        self.run_dir = summary.path.parent

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.should_stop:  # else the end follows at once
            with hardware.same_random_states(pl_module.device.type):  # building a model draws its weights
                self._write()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if (self.run_dir / "metrics.csv").exists() and not isinstance(exception, KeyboardInterrupt):  # at once, that is
            self._write()

    def _write(self) -> None:
        from tinygpt.report import run  # Plotly, which only a run that has something to tell need wait for

        try:
            run.build(self.run_dir)
        except Exception as error:
            print(f"train.py: the report could not be written: {one_line(error)}", file=sys.stderr)
