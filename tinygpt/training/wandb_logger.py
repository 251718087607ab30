"""Weights & Biases, with or without an account."""

import os
from pathlib import Path

import wandb
from lightning.pytorch.loggers import WandbLogger


def wandb_logger(*, run_dir: str, project: str = "tinygpt", name: str | None = None) -> WandbLogger:
    """A run of Weights & Biases; offline by itself where no key is known, and then it says how to send the run later.

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
    return WandbLogger(project=project, name=name, save_dir=run_dir, offline=offline, mode=mode)
