"""What a person sees while a run goes on: a bar in a terminal, lines of text elsewhere."""

import logging
import sys
import time
import warnings
from datetime import timedelta
from math import isnan
from typing import Any

import datasets
import lightning.pytorch as pl
from tqdm import tqdm

from tinygpt.training.metrics import Metrics

SECONDS_BETWEEN_LINES = 10


def quiet() -> None:
    """Keep Lightning's and the data library's own chatter off the screen; warnings that a user can act on stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    for message in (
        ".*does not have many workers",  # a batch is cut from a memory-mapped file in microseconds
        ".*GPU available but not used",
        ".*LeafSpec.* is deprecated",  # Lightning's own call
        "The .grad attribute of a Tensor that is not a leaf",  # looked at by torch.compile itself
    ):
        warnings.filterwarnings("ignore", message)


class Progress(pl.Callback):
    """Step, loss, tokens/s and time left; and each validation's result on a line of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.bar: tqdm | None = None
        self.line_at = 0.0
        self.step = 0  # that was shown last

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.line_at, self.step = time.monotonic(), self.metrics.step
        if sys.stdout.isatty():
            layout = "{percentage:3.0f}% {bar} {desc}"
            self.bar = tqdm(total=1.0, file=sys.stdout, bar_format=layout, dynamic_ncols=True, leave=False)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        m = self.metrics
        if m.step % m.log_every or m.step == self.step or m.train_loss is None:  # or in the middle of an accumulation
            return
        self.step = m.step
        if self.bar is not None:
            self.bar.set_description_str(self._line(), refresh=False)
            self.bar.update(min(1.0, m.budget.progress(m.step)) - self.bar.n)
        elif time.monotonic() - self.line_at >= SECONDS_BETWEEN_LINES:
            self.line_at = time.monotonic()
            print(self._line(), flush=True)

    def _line(self) -> str:
        m = self.metrics
        left = timedelta(seconds=max(0, round(m.budget.seconds_left(m.step))))
        share = "n/a" if isnan(m.utilisation) else f"{m.utilisation:.0%}"
        figures = f"loss {m.train_loss:.3f}  {m.tokens_per_second:,.0f} tokens/s, {share} of the peak"
        return f"step {m.budget.of(m.step)}  {figures}  {left} left"

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        m = self.metrics
        best = "  (best so far)" if m.val_loss == m.best_val_loss else ""
        line = f"step {m.budget.of(m.step)}  validation loss {m.val_loss:.4f}"
        tqdm.write(f"{line}  {m.val_bits_per_byte:.4f} bits per byte{best}", file=sys.stdout)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
