"""Going on with a run: where it stands, and what a changed setting does to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from filelock import FileLock, Timeout

from tinygpt import checkpoint
from tinygpt.config import Config, UsageError
from tinygpt.optim import Schedule

# What may be another without any figure becoming another: the results are those of a run never stopped.
FREE = (
    "resume",
    "run_dir",
    "dry_run",
    "on_bad_loss",
    "data.num_workers",
    "data.num_proc",
    "data.cache_dir",
    "callbacks.checkpoint.keep",
)
# What the model that was begun is: its parts may not become others, but for these.
FIXED = ("model", "tokenizer")
NOT_FIXED = ("model.dropout", "model.gradient_checkpointing")


class Earlier(NamedTuple):
    """A run to go on with.

    Attributes:
        cfg: its configuration, as it was begun or gone on with the last time.
        contents: of its last checkpoint; None: it was stopped before there was one.
    """

    cfg: Config
    contents: dict[str, Any] | None

    @property
    def step(self) -> int:
        """The optimizer steps that it has made."""
        return self.contents["global_step"] if self.contents else 0


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Keep every other process from training in this directory.

    Raises:
        UsageError: one does already.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run_dir / ".lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"another process trains in {run_dir}; wait for it, or stop it") from error
    with held:
        yield


def earlier(run_dir: Path) -> Earlier:
    """The run in a directory, as its files tell it.

    Raises:
        UserError: its last checkpoint cannot be read.
    """
    last = run_dir / "checkpoints" / "last.ckpt"
    cfg = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    cfg["model"].pop("vocab_size")  # it follows from the tokenizer
    return Earlier(cfg, checkpoint.load(last) if last.exists() else None)


def moved(cfg: Config, old: str, new: str) -> Config:
    """A configuration in which what lay in one directory lies in another."""

    def move(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: move(item) for key, item in value.items()}
        if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
            return new + value.removeprefix(old)
        return value

    return move(cfg)


def differences(before: Config, after: Config, schedule: Schedule, step: int) -> list[str]:
    """What makes a run another than the one that was begun, a line each.

    Args:
        before, after: its configuration, and the one that it is to go on with.
        schedule: of the learning rate.
        step: the steps that it has made.

    Raises:
        UsageError: a setting was changed that the model depends on.
    """
    was, will_be = _flat(before), _flat(after)
    found = []
    for key in sorted(was.keys() | will_be.keys()):
        old: Any = was.get(key)
        new: Any = will_be.get(key)
        if old == new or key in FREE or key.startswith("logger."):
            continue
        if key.endswith("_target_") or (key.startswith(FIXED) and key not in NOT_FIXED):
            raise UsageError(f"{key} cannot be changed to {new}, the run was begun with {old}; start a new one")
        if key != "trainer.max_steps":
            found.append(f"{key} was {old} and is {new}")
        elif any(schedule(i, old) != schedule(i, new) for i in range(step)):
            found.append(f"{key} was {old} and is {new}: the {step} steps so far had another learning rate")
        elif step == old and step % after["eval_every"]:
            found.append(f"{key} was {old}: metrics.csv has a record and a validation at that step")
    return found


def _flat(node: Any, name: str = "") -> dict[str, Any]:
    """Every value by its dotted name; one that is nothing is left out."""
    if not isinstance(node, dict):
        return {} if node is None else {name: node}
    return {k: v for key, item in node.items() for k, v in _flat(item, f"{name}.{key}".lstrip(".")).items()}
