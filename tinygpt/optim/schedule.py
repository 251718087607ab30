"""What every learning-rate schedule has: a warm-up, and an end."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rates: up linearly over the warm-up, and down by the share of the run that is done.

    That share is of the steps or of the time, whichever a run is measured by: the schedule does not know.

    Args:
        warmup_steps: optimizer steps on the way up.
        final_fraction: what is left of the learning rate when the run is done.

    Raises:
        ValueError: a value is out of its range.
    """

    warmup_steps: int = 100
    final_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction must lie between 0 and 1, got {self.final_fraction}")

    def __call__(self, step: int, progress: float) -> float:
        """The factor for optimizer step `step`, counted from 0, with this share of the run done."""
        rise = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return rise * (self.final_fraction + (1 - self.final_fraction) * self.decay(min(progress, 1.0)))

    def decay(self, progress: float) -> float:
        """From 1 at the beginning to 0 at the end of the run."""
        raise NotImplementedError
