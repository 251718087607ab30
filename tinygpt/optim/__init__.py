"""Optimizers and learning-rate schedules, one file each."""

from collections.abc import Callable

Schedule = Callable[[int, int], float]  # (optimizer step from 0, number of steps) → factor on the learning rate
