"""One tiny training run, for the tests of the LightningModule and its callbacks."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch

from tinygpt.data.corpus import LayoutName
from tinygpt.data.module import TextDataModule
from tinygpt.data.text_files import TextFiles
from tinygpt.data.token_file import TokenFile
from tinygpt.model import GPT2
from tinygpt.optim.adamw import adamw
from tinygpt.optim.cosine import Cosine
from tinygpt.tokenizers import ByteTokenizer
from tinygpt.training.budget import Budget
from tinygpt.training.checkpointing import Checkpoint, CheckpointFiles
from tinygpt.training.interrupt import StopOnSignal
from tinygpt.training.metrics import Metrics
from tinygpt.training.module import LanguageModel
from tinygpt.training.progress import Progress
from tinygpt.training.summary import Summary

TEXT = "To be, or not to be, that is the question. " * 20
BLOCK, BATCH = 16, 4


class Run:
    """One training run in the current folder."""

    def __init__(
        self,
        token_file: Callable[..., TokenFile],
        *,
        max_steps: int = 6,
        max_time: str | None = None,
        eval_every: int = 4,
        log_every: int = 2,
        accumulate: int = 1,
        keep: int = 1,
        lr: float = 1e-2,
        clip: float = 1.0,
        overfit: bool = False,
        compile: bool = False,
        on_bad_loss: Literal["stop", "skip"] = "stop",
        callbacks: tuple[pl.Callback, ...] = (),
        texts: tuple[str, ...] = (TEXT,),
        layout: LayoutName = "windows",
        plugins: tuple = (),
        accelerator: str = "cpu",
        precision: Any = None,
    ) -> None:
        torch.manual_seed(0)
        tokens = token_file(*texts)
        model = GPT2(vocab_size=257, block_size=BLOCK, n_layer=1, n_head=2, n_embd=16)
        corpus = TextFiles(files="unused", batch_size=BATCH, overfit=overfit, layout=layout)
        self.data = TextDataModule(tokens, tokens, corpus=corpus, block_size=BLOCK, seed=0, accumulate=accumulate)
        budget = Budget(max_steps, max_time)
        self.module = LanguageModel(
            model,
            ByteTokenizer(),
            optimizer=adamw(model, lr=lr),
            schedule=Cosine(warmup_steps=1),
            budget=budget,
            bytes_per_id=torch.from_numpy(tokens.bytes_per_id(ByteTokenizer().n_bytes)),
            compile=compile,
            on_bad_loss=on_bad_loss,
        )
        counts = {"flops_per_token": model.flops_per_token(), "peak_flops": 1e12}
        self.metrics = Metrics(Path("metrics.csv"), log_every, self.data.train_layout.n_targets, budget, **counts)
        self.checkpoint = Checkpoint("checkpoints", keep=keep)
        facts = {"n_parameters": model.n_parameters(), "device": "cpu", "precision": "32-true"}
        self.trainer = pl.Trainer(
            accelerator=accelerator,
            precision=precision,
            max_steps=max_steps,
            max_epochs=-1,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=clip,
            val_check_interval=eval_every * accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[CheckpointFiles(), *plugins],
            logger=False,
            callbacks=[
                self.metrics,
                Progress(self.metrics),
                *callbacks,
                StopOnSignal(),
                self.checkpoint,
                Summary(Path("summary.json"), self.metrics, self.checkpoint, facts),
            ],
        )

    def fit(self) -> "Run":
        self.trainer.fit(self.module, datamodule=self.data)
        return self

    def summary(self) -> dict:
        return json.loads(Path("summary.json").read_text())

    def records(self) -> list[dict]:
        with Path("metrics.csv").open(newline="") as file:
            return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def checkpoints() -> list[str]:
    return sorted(path.name for path in Path("checkpoints").iterdir())
