"""Weights & Biases, with or without an account."""

import os
import secrets
from pathlib import Path

import wandb
from lightning.pytorch.loggers import WandbLogger

from tinygpt import files


def wandb_logger(*, run_dir: str, project: str = "tinygpt", name: str | None = None) -> WandbLogger:
    """A run of Weights & Biases; offline by itself where no key is known, and then it says how to send the run later.

    Its id is kept in the run's directory, so that a run that is gone on with stays one there.

    Args:
        run_dir: the run's directory, where an offline run is kept.
        project: the project that the run belongs to.
        name: the run's name; None: its directory's.
    """
    offline = os.environ.get("WANDB_MODE") == "offline" or not wandb.login(prompt=False)
    if offline:
        print(f"wandb: the run is kept offline; to send it later: wandb sync {run_dir}/wandb/offline-run-*")
    # `offline` alone comes too late: the login has started the client by then.
    mode = "offline" if offline else None
    name = name or Path(run_dir).name
    kept = Path(run_dir) / "wandb" / "run_id"
    if not kept.exists():
        files.write_text(kept, secrets.token_hex(4))
    run_id = kept.read_text()
    return WandbLogger(project=project, name=name, id=run_id, save_dir=run_dir, offline=offline, mode=mode)
