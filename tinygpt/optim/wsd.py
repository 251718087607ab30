"""Warm-up, stable, decay."""

from dataclasses import dataclass

from tinygpt.optim.schedule import Schedule


@dataclass(frozen=True)
class WSD(Schedule):
    """The whole learning rate for a while, then linearly down. See `Schedule` for the other arguments.

    Args:
        cooldown: the share of the run in which it falls.

    Raises:
        ValueError: a value is out of its range.

    Source: Hu et al., MiniCPM, 2024, section 4; Hägele et al., 2024, section 3, for the line.
    """

    final_fraction: float = 0.0
    cooldown: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.cooldown <= 1:
            raise ValueError(f"cooldown must be above 0 and at most 1, got {self.cooldown}")

    def decay(self, progress: float) -> float:
        return min(1.0, (1 - progress) / self.cooldown)
