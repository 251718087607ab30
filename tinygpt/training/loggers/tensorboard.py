"""TensorBoard's event files."""

from typing import Any

import yaml
from lightning.pytorch.loggers import TensorBoardLogger


class TensorBoard(TensorBoardLogger):
    """Event files in the run's directory: `tensorboard --logdir runs`.

    Args:
        run_dir: the run's directory.
    """

    def __init__(self, *, run_dir: str) -> None:
        super().__init__(save_dir=run_dir, name="tensorboard", version="", default_hp_metric=False)

    def log_hyperparams(self, params: dict[str, Any], *_: Any) -> None:  # type: ignore[override]
        """As text: the table of hyperparameters knows no nested ones."""
        self.experiment.add_text("configuration", f"```yaml\n{yaml.safe_dump(params, sort_keys=False)}```")

    def log_samples(self, samples: list[dict[str, Any]], step: int) -> None:
        """What prompts were continued with, as text, each indented so that it is shown as it is."""
        for i, sample in enumerate(samples):
            text = "\n".join(f"    {line}" for line in (sample["prompt"] + sample["text"]).split("\n"))
            self.experiment.add_text(f"sample {i + 1}, temperature {sample['temperature']}", text, step)
