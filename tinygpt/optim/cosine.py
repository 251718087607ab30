"""Half a cosine."""

from dataclasses import dataclass
from math import cos, pi

from tinygpt.optim.schedule import Schedule


@dataclass(frozen=True)
class Cosine(Schedule):
    """Falls from the first step on, slowly at both ends. See `Schedule` for the arguments.

    Source: Loshchilov and Hutter, 2017, equation 5, without restarts.
    """

    def decay(self, progress: float) -> float:
        return (1 + cos(pi * progress)) / 2
