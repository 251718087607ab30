"""How much a run trains, and how much of that is done."""

import re
import time
from math import inf

UNLIMITED = -1  # steps, as Lightning writes it


def seconds_of(text: str) -> float:
    """Seconds of DAYS:HOURS:MINUTES:SECONDS, as Lightning writes a time.

    Raises:
        ValueError: it is written otherwise, or it is none.
    """
    match = re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", text) if isinstance(text, str) else None
    days, hours, minutes, seconds = map(int, match.groups()) if match else (0, 0, 0, 0)
    total = seconds + 60 * (minutes + 60 * (hours + 24 * days))
    if not total:
        raise ValueError(f"max_time must be DAYS:HOURS:MINUTES:SECONDS, such as 00:00:05:00, got {text!r}")
    return float(total)


def written(seconds: float) -> str:
    """As DAYS:HOURS:MINUTES:SECONDS."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days:02}:{hours:02}:{minutes:02}:{seconds:02}"


class Budget:
    """Optimizer steps, seconds of training, or both: what is spent first ends the run.

    The seconds are training's own: validation, saving and compiling come on top.

    Args:
        max_steps: -1: any number.
        max_time: DAYS:HOURS:MINUTES:SECONDS; None: any.

    Attributes:
        seconds: of training so far, up to when the clock was last read.

    Raises:
        ValueError: there is no end, or it is at once.
    """

    def __init__(self, max_steps: int, max_time: str | None = None) -> None:
        if max_steps < 1 and (max_steps != UNLIMITED or max_time is None):
            raise ValueError(f"max_steps must be at least 1, or -1 with a max_time, got {max_steps}")
        self.max_steps = inf if max_steps == UNLIMITED else max_steps
        self.max_seconds = inf if max_time is None else seconds_of(max_time)
        self.seconds = 0.0
        self._running_since: float | None = None  # None while training rests

    def run(self) -> None:
        """Let the clock run; a running one runs on."""
        if self._running_since is None:
            self._running_since = time.monotonic()

    def rest(self) -> None:
        """Stop the clock until training goes on."""
        self.read_clock()
        self._running_since = None

    def read_clock(self) -> float:
        """Seconds of training so far."""
        if self._running_since is not None:
            now = time.monotonic()
            self.seconds += now - self._running_since
            self._running_since = now
        return self.seconds

    def progress(self, step: int) -> float:
        """The share of the run that is done after so many steps: 0 at its beginning, 1 or more when it is over."""
        return max(step / self.max_steps, self.seconds / self.max_seconds)

    def seconds_left(self, step: int) -> float:
        """By the pace of the steps so far, at least one."""
        done = self.progress(step)
        return self.seconds * (1 - done) / done

    def doubled(self, step: int) -> str:
        """The setting that gives a run as much again, once it is over after so many steps."""
        if self.seconds < self.max_seconds:
            return f"trainer.max_steps={2 * step}"
        return f"trainer.max_time={written(2 * self.max_seconds)}"

    def of(self, step: int) -> str:
        """A step, and of how many, for a person."""
        return f"{step}" if self.max_steps == inf else f"{step}/{self.max_steps}"
