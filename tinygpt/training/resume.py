"""Going on with a run: where it stands, and what a changed setting does to it."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml
from lightning.pytorch import Trainer

from tinygpt import checkpoint
from tinygpt.config import Config, flat, parts, target
from tinygpt.errors import UsageError, UserError
from tinygpt.optim.schedule import Schedule
from tinygpt.training.budget import UNLIMITED

# What may be another without any figure becoming another: the results are those of a run never stopped.
FREE = ("resume", "run_dir", "dry_run", "on_bad_loss", "data.num_workers", "data.num_proc", "data.cache_dir")
# What the model that was begun is: its parts may not become others, but for these.
FIXED = ("model.", "tokenizer.")
NOT_FIXED = ("model.dropout", "model.gradient_checkpointing")


class Earlier(NamedTuple):
    """A run to go on with.

    Attributes:
        cfg: its configuration, as it was begun or gone on with the last time.
        step: the optimizer steps that its last checkpoint has made; 0 where it was stopped before there was one.
        tokenizer: of that checkpoint, as it is described there; None where there is no checkpoint.
        data: what the data module keeps in that checkpoint.
    """

    cfg: Config
    step: int = 0
    tokenizer: Any = None
    data: dict[str, Any] | None = None


def earlier(run_dir: Path) -> Earlier:
    """The run in a directory, as its files tell it.

    Raises:
        UserError: its last checkpoint is gone, or cannot be read.
        UsageError: its configuration names what is not tinygpt's; nothing of it is called.
    """
    last, best = (run_dir / "checkpoints" / name for name in ("last.ckpt", "best.ckpt"))
    cfg = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    for group, node in parts(cfg).items():
        name = str(node["_target_"])
        if not name.startswith(("tinygpt.", "lightning.pytorch.")) or not _ours(target(node)):
            raise UsageError(f"{run_dir / 'config.yaml'}: {group} names {name}, which is not tinygpt's; it is not run")
    cfg["model"].pop("vocab_size", None)  # it follows from the tokenizer
    if not last.exists() and not best.exists():
        return Earlier(cfg)
    try:
        contents = checkpoint.load(last, mmap=True)
    except UserError as error:
        instead = f"; to go on from the best one, copy {best} to it" if best.exists() else ""
        raise UserError(f"{error}{instead}") from error
    return Earlier(cfg, contents["global_step"], contents["tinygpt"]["tokenizer"], contents["TextDataModule"])


def _ours(constructor: Any) -> bool:
    return constructor is Trainer or str(getattr(constructor, "__module__", "")).split(".")[0] == "tinygpt"


def differences(before: Config, after: Config, schedule: Schedule, step: int) -> list[str]:
    """What makes a run another than the one that was begun, a line each.

    Args:
        before, after: its configuration, and the one that it is to go on with.
        schedule: of the learning rate.
        step: the steps that it has made; of one that has made none nothing is another.

    Raises:
        UsageError: a setting was changed that the model depends on.
    """
    was, will_be = flat(before), flat(after)
    found = []
    for key in sorted(was.keys() | will_be.keys()) if step else ():
        old: Any = was.get(key)
        new: Any = will_be.get(key)
        if old == new or key in FREE or key.startswith("logger."):
            continue
        if key.endswith("_target_") or (key.startswith(FIXED) and key not in NOT_FIXED):
            raise UsageError(f"{key} cannot be changed to {new}, the run was begun with {old}; start a new one")
        if key != "trainer.max_steps" or UNLIMITED in (old, new):
            found.append(f"{key} was {old} and is {new}")
        elif any(schedule(i, i / old) != schedule(i, i / new) for i in range(step)):
            found.append(f"{key} was {old} and is {new}: the {step} steps so far had another learning rate")
        elif step == old and step % after["eval_every"]:
            found.append(f"{key} was {old}: metrics.csv has a record and a validation at that step")
    return found
