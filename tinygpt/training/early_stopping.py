"""Stopping when the model no longer learns."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Stops when the validation loss has not fallen by `min_delta` for `patience` validations.

    Lightning's own takes `patience` from a checkpoint whatever the configuration says, and trains on where the
    checkpoint is of the validation that stopped the run.

    Attributes:
        reason: why the run was stopped; None: it was not.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(self, patience: int = 3, min_delta: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if min_delta < 0:
            raise ValueError(f"min_delta must be at least 0, got {min_delta}")
        super().__init__("val_loss", patience=patience, min_delta=min_delta, check_finite=False)  # NaN has not fallen

    @property
    def reason(self) -> str | None:
        return "the validation loss no longer falls" if self.wait_count >= self.patience else None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = self.wait_count >= self.patience
