"""The configuration's keys outside its groups."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from tinygpt.config import Config, check, construct


@dataclass(kw_only=True)
class Settings:
    """The configuration's keys outside its groups."""

    seed: int
    run_dir: str
    eval_every: int
    log_every: int
    compile: bool
    deterministic: bool
    on_bad_loss: Literal["stop", "skip"]
    dry_run: bool
    minutes: float | None = None
    resume: str | None = None
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < inf:
            raise ValueError(f"minutes must be above 0 and finite, got {self.minutes}")
        for name, least in (("seed", 0), ("eval_every", 1), ("log_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.run_dir or self.run_dir.startswith("~"):
            raise ValueError(f"run_dir must name a directory, with ~ written out, got {self.run_dir!r}")


def settings_of(cfg: Config) -> Settings:
    """The keys outside the groups, checked."""
    keys = {key: value for key, value in cfg.items() if not isinstance(value, dict) and value is not None}
    check("", Settings, keys)
    return construct("", Settings, keys)
