"""An average of the weights, which is what is validated, kept and sampled."""

import lightning.pytorch as pl
from lightning.pytorch import callbacks


class WeightAveraging(callbacks.EMAWeightAveraging):
    """The exponential moving average of the weights.

    Lightning's own exchanges the weights and their average for a validation, and leaves them exchanged where that is
    interrupted: the checkpoint would have the one for the other.

    Args:
        decay: of the average in each update.
        every: optimizer steps between two updates.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(self, decay: float = 0.999, every: int = 1) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        # Buffers are no weights: they are copied, not averaged. The first update copies the weights, and comes at once:
        # until then the average would be the fresh ones.
        super().__init__(decay=decay, update_every_n_steps=every, update_starting_at_step=0, use_buffers=False)
        self._exchanged = False

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        self._exchanged = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self._exchanged = False

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self._exchanged:  # the callbacks that save come after this one
            self.on_validation_epoch_end(trainer, pl_module)
