"""Weights & Biases, with or without an account."""

import os
import secrets
from pathlib import Path
from typing import Any

import wandb
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger

from tinygpt import files


class Wandb(WandbLogger):
    """A run of Weights & Biases; offline by itself where no key is known, and then it says how to send the run later.

    Its id is kept in the run's directory, so that a run that is gone on with stays one there.

    Args:
        run_dir: the run's directory, where an offline run is kept.
        project: the project that the run belongs to.
        name: the run's name; None: its directory's.
        group: what shows it together with others; None: `WANDB_RUN_GROUP`, which is a sweep's directory.
        log_checkpoints: send the best checkpoint and the tokenizer too, when the run ends.
    """

    def __init__(
        self,
        *,
        run_dir: str,
        project: str = "tinygpt",
        name: str | None = None,
        group: str | None = None,
        log_checkpoints: bool = False,
    ) -> None:
        mode = os.environ.get("WANDB_MODE") or (None if wandb.login(prompt=False) else "offline")
        self.offline = mode == "offline"
        self.log_checkpoints = log_checkpoints
        self.kept = Path(run_dir) / "wandb" / "run_id"
        # An agent of a W&B sweep says the run's id.
        new = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        super().__init__(
            project=project,
            name=name or Path(run_dir).name,
            id=self.kept.read_text() if self.kept.exists() else new,
            save_dir=str(Path(run_dir).resolve()),  # its service has been started elsewhere, it may be
            mode=mode,  # Lightning's `offline` comes too late where the login has started the client
            group=group,
            settings=wandb.Settings(quiet=True, silent=self.offline),  # its table of figures; how to sync is said below
        )
        self._wandb_init.pop("anonymous", None)  # of which W&B says each time that it does nothing

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, which begins with the first use: until then a mistake leaves nothing."""
        if self._experiment is None:
            if self.offline:
                runs = self.kept.with_name("offline-run-*")
                print(f"wandb: the run is kept offline; to send it later: wandb sync {runs}")
            files.write_text(self.kept, str(self.version))
        return super().experiment

    def log_samples(self, samples: list[dict[str, Any]], step: int) -> None:
        """What prompts were continued with, as a table."""
        self.log_table("samples", columns=[*samples[0]], data=[[*sample.values()] for sample in samples], step=step)

    def log_run(self, run_dir: Path) -> None:
        """The report, and the checkpoint where that is wanted."""
        if (run_dir / "report.html").exists():
            self.experiment.log({"report": wandb.Html(str(run_dir / "report.html"))})
        best = run_dir / "checkpoints" / "best.ckpt"
        if self.log_checkpoints and best.exists():
            artifact = wandb.Artifact(f"checkpoint-{self.experiment.id}", type="model")
            artifact.add_file(str(best))
            artifact.add_file(str(run_dir / "tokenizer.json"))
            self.experiment.log_artifact(artifact)
