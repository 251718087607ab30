"""Linear warm-up, then half a cosine."""

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class Cosine:
    """The factor on the learning rate: up linearly over the warm-up, down half a cosine to the end.

    Args:
        warmup_steps: optimizer steps on the way up.
        final_fraction: what is left of the learning rate when the last step has been made.

    Raises:
        ValueError: a value is out of its range.

    Source: Loshchilov and Hutter, 2017, equation 5, without restarts.
    """

    warmup_steps: int = 100
    final_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction must lie between 0 and 1, got {self.final_fraction}")

    def __call__(self, step: int, max_steps: int) -> float:
        """The factor for optimizer step `step`, counted from 0, of max_steps."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps)
        return self.final_fraction + (1 - self.final_fraction) * (1 + cos(pi * min(progress, 1.0))) / 2
