"""The LightningModule and its callbacks, on a tiny model and a tiny text."""

import csv
import errno
import json
import os
import signal
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision

from tinygpt import checkpoint
from tinygpt.data.module import TextDataModule
from tinygpt.data.text_files import TextFiles
from tinygpt.data.token_file import TokenFile
from tinygpt.errors import UserError
from tinygpt.model import GPT2, next_token_loss
from tinygpt.optim.adamw import adamw
from tinygpt.optim.cosine import Cosine
from tinygpt.tokenizers import ByteTokenizer
from tinygpt.training.checkpointing import Checkpoint
from tinygpt.training.interrupt import Interrupted, StopOnSignal
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
        token_file: Callable[[str], TokenFile],
        *,
        max_steps: int = 6,
        eval_every: int = 4,
        log_every: int = 2,
        accumulate: int = 1,
        keep: int = 1,
        lr: float = 1e-2,
        clip: float = 1.0,
        overfit: bool = False,
        compile: bool = False,
        callbacks: tuple[pl.Callback, ...] = (),
        plugins: list | None = None,
        accelerator: str = "cpu",
        precision: Any = None,
    ) -> None:
        torch.manual_seed(0)
        tokens = token_file(TEXT)
        model = GPT2(vocab_size=257, block_size=BLOCK, n_layer=1, n_head=2, n_embd=16)
        corpus = TextFiles(files="unused", batch_size=BATCH, overfit=overfit)
        self.data = TextDataModule(tokens, tokens, corpus=corpus, block_size=BLOCK, seed=0)
        self.module = LanguageModel(
            model,
            ByteTokenizer(),
            optimizer=adamw(model, lr=lr),
            schedule=Cosine(warmup_steps=1),
            bytes_per_id=torch.from_numpy(tokens.bytes_per_id(ByteTokenizer().n_bytes)),
            compile=compile,
        )
        self.metrics = Metrics(log_every, BLOCK * BATCH * accumulate, self.data.train_batches().n_targets)
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
            plugins=plugins,
            logger=CSVLogger(".", name="", version="", flush_logs_every_n_steps=1),
            callbacks=[
                self.metrics,
                Progress(self.metrics),
                StopOnSignal(),
                *callbacks,
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


def test_a_run_learns_and_writes_what_it_reached(token_file):
    run = Run(token_file, max_steps=60, eval_every=20).fit()
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["step"] == 60
    assert summary["tokens_seen"] == 60 * BLOCK * BATCH
    assert summary["epoch"] == pytest.approx(60 * BLOCK * BATCH / (len(TEXT) + 1))
    assert summary["val_loss"] < 3.0 < log(257)
    assert summary["best_val_loss"] <= summary["val_loss"]
    assert summary["train_seconds"] > 0
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens_seen"] / summary["train_seconds"])
    assert summary["checkpoint"] == "checkpoints/best.ckpt"
    assert checkpoints() == ["best.ckpt", "last.ckpt"]


def test_validation_counts_every_token_once_and_bits_per_byte_follow_from_it(token_file):
    run = Run(token_file).fit()
    ids = torch.tensor(run.data.validation.ids.astype("int64"))
    nats = 0.0
    with torch.no_grad():
        for i in range(0, len(ids) - 1, BLOCK):
            target = ids[i + 1 : i + 1 + BLOCK]
            nats += next_token_loss(run.module.model.eval()(ids[None, i : i + len(target)]), target[None], "sum").item()
    assert run.metrics.val_loss == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert run.metrics.val_bits_per_byte == pytest.approx(nats / log(2) / len(TEXT), rel=1e-5)


@pytest.mark.parametrize(("max_steps", "validated"), [(1, [1]), (4, [4]), (6, [4, 6]), (9, [4, 8, 9])])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_intervals_are_optimizer_steps_and_the_last_step_is_always_validated(
    token_file, accumulate: int, max_steps: int, validated: list[int]
):
    run = Run(token_file, max_steps=max_steps, accumulate=accumulate).fit()
    assert [record["step"] for record in run.records() if "val_loss" in record] == validated
    trained = [record["step"] for record in run.records() if "train_loss" in record]
    assert trained == sorted({*range(2, max_steps + 1, 2), max_steps})
    last = torch.load("checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == max_steps


def test_accumulated_batches_equal_one_large_batch(token_file):
    gradients = []

    class Keep(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            gradients.append([p.grad.clone() for p in pl_module.parameters() if p.grad is not None])

    for batch_size, accumulate in ((4, 1), (2, 2)):
        run = Run(token_file, max_steps=1, accumulate=accumulate, callbacks=(Keep(),))
        run.data.corpus.batch_size = batch_size
        run.fit()
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, atol=1e-7, rtol=1e-4)


def test_the_recorded_loss_is_the_mean_since_the_record_before(token_file):
    every = Run(token_file, max_steps=4, log_every=1).fit().records()
    Path("metrics.csv").unlink()
    second = Run(token_file, max_steps=4, log_every=2).fit().records()
    losses = [record["train_loss"] for record in every if "train_loss" in record]
    averaged = [record["train_loss"] for record in second if "train_loss" in record]
    assert averaged == pytest.approx([(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2])


def test_the_learning_rate_is_the_schedules(token_file):
    records = Run(token_file, max_steps=4, log_every=1, lr=1e-2).fit().records()
    rates = [record["lr"] for record in records if "lr" in record]
    assert rates == pytest.approx([1e-2 * Cosine(warmup_steps=1)(step, 4) for step in range(4)])


def test_gradients_are_clipped_by_their_common_norm(token_file):
    norms = []

    class Measure(pl.Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            if gradients:
                norms.append(torch.stack([g.norm() for g in gradients]).norm().item())

    run = Run(token_file, clip=0.01, log_every=1, callbacks=(Measure(),)).fit()
    assert norms
    assert all(norm == pytest.approx(0.01, rel=1e-3) for norm in norms)
    assert all(record["grad_norm"] > 0.01 for record in run.records() if "grad_norm" in record)


def test_fp16_unscales_before_it_clips(token_file):
    """A fused optimizer undoes the scaling inside its step; measured before, the norm would be 1024 times as large."""
    fp32 = Run(token_file, max_steps=2, log_every=1).fit().records()
    Path("metrics.csv").unlink()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = Run(token_file, max_steps=2, log_every=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)]).fit()
    for ours, theirs in zip(run.records()[:2], fp32[:2], strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.02)
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.01)


def test_bf16_trains_with_a_fused_optimizer_and_clipping(token_file):
    run = Run(token_file, max_steps=40, plugins=[MixedPrecision("bf16-mixed", "cpu")]).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 3.5
    assert all(p.dtype == torch.float32 for p in run.module.parameters())


def test_a_training_loss_that_is_not_a_number_stops_the_run(token_file):
    run = Run(token_file, max_steps=100, lr=1e30, clip=0.0)
    with pytest.raises(UserError, match="the training loss is nan at step .; try a lower optimizer.lr"):
        run.fit()
    assert run.summary()["status"] == "failed"


def test_clipping_by_value_is_refused(token_file):
    run = Run(token_file)
    run.trainer.gradient_clip_algorithm = "value"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="gradients are clipped by their norm, not by value"):
        run.fit()


def test_the_best_checkpoint_stays_when_the_temporary_folder_is_on_another_disk(token_file, monkeypatch):
    """Lightning's own move then copies into the file that is there, which is the best one's as well."""

    def another_disk(src, dst, **_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    losses = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(
        LanguageModel,
        "on_validation_epoch_end",
        lambda self: self.log_dict({"val_loss": next(losses), "val_bits_per_byte": 1.0}, logger=False),
    )
    monkeypatch.setattr("os.rename", another_disk)
    Run(token_file, max_steps=3, eval_every=1).fit()
    assert torch.load("checkpoints/best.ckpt", weights_only=True)["global_step"] == 1
    assert torch.load("checkpoints/last.ckpt", weights_only=True)["global_step"] == 3


def test_a_disk_without_hard_links_gets_copies(token_file, monkeypatch):
    def no_links(src, dst):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    Run(token_file, max_steps=3, eval_every=1, keep=2).fit()
    assert checkpoints() == ["best.ckpt", "last.ckpt", "step-000002.ckpt"]


def test_one_batch_is_learned_by_heart(token_file):
    run = Run(token_file, max_steps=300, eval_every=300, overfit=True, lr=3e-2).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 0.15


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (1, ["best.ckpt", "last.ckpt"]),
        (2, ["best.ckpt", "last.ckpt", "step-000002.ckpt"]),
        (3, ["best.ckpt", "last.ckpt", "step-000001.ckpt", "step-000002.ckpt"]),
        (9, ["best.ckpt", "last.ckpt", "step-000001.ckpt", "step-000002.ckpt", "step-000004.ckpt"]),
    ],
)
def test_the_best_checkpoints_are_kept(token_file, monkeypatch: pytest.MonkeyPatch, keep: int, expected: list[str]):
    losses = iter([3.0, 2.0, 1.0, 4.0])
    monkeypatch.setattr(
        LanguageModel,
        "on_validation_epoch_end",
        lambda self: self.log_dict({"val_loss": next(losses), "val_bits_per_byte": 1.0}, logger=False),
    )
    Run(token_file, max_steps=4, eval_every=1, keep=keep).fit()
    assert checkpoints() == expected
    steps = {name: torch.load(f"checkpoints/{name}", weights_only=True)["global_step"] for name in expected}
    assert steps["best.ckpt"] == 3
    assert steps["last.ckpt"] == 4
    assert all(steps[name] == int(name[5:11]) for name in expected if name.startswith("step-"))


def test_a_validation_that_is_not_a_number_is_never_the_best(token_file, monkeypatch: pytest.MonkeyPatch):
    losses = iter([float("nan"), 2.0, float("nan")])
    monkeypatch.setattr(
        LanguageModel,
        "on_validation_epoch_end",
        lambda self: self.log_dict({"val_loss": next(losses), "val_bits_per_byte": 1.0}, logger=False),
    )
    run = Run(token_file, max_steps=3, eval_every=1).fit()
    assert torch.load("checkpoints/best.ckpt", weights_only=True)["global_step"] == 2
    assert run.metrics.best_val_loss == 2.0
    assert run.summary()["val_loss"] is None


def test_the_checkpoint_rebuilds_the_trained_model(token_file):
    run = Run(token_file).fit()
    contents = checkpoint.read(Path("checkpoints/last.ckpt"))
    ids = torch.randint(257, (2, BLOCK))
    assert torch.equal(contents.model(ids), run.module.model.eval()(ids))


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGTERM, "train"), (signal.SIGINT, "train"), (signal.SIGINT, "val")]
)
def test_a_signal_saves_and_stops_between_two_steps(token_file, number: signal.Signals, when: str):
    class Signal(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if when == "train" and batch_idx == 2:
                os.kill(os.getpid(), number)

        def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
            if when == "val":
                os.kill(os.getpid(), number)

    run = Run(token_file, max_steps=100, callbacks=(Signal(),))
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stop:
        run.fit()
    assert stop.value.signal == number
    assert signal.getsignal(number) == before
    step = 3 if when == "train" else 4
    assert torch.load("checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    summary = run.summary()
    assert (summary["status"], summary["step"]) == ("interrupted", step)
    assert summary["checkpoint"] == "checkpoints/last.ckpt"
    assert summary["train_loss"] > 0
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens_seen"] / summary["train_seconds"])


def test_the_summary_is_up_to_date_between_validations(token_file, monkeypatch):
    monkeypatch.setattr("tinygpt.training.summary.SECONDS_BETWEEN_WRITES", 0)
    seen = []

    class Read(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(json.loads(Path("summary.json").read_text()))

    Run(token_file, max_steps=3, callbacks=(Read(),)).fit()
    assert [summary["step"] for summary in seen] == [0, 1, 2]
    assert {summary["status"] for summary in seen} == {"running"}


def test_a_failure_keeps_the_last_checkpoint_and_is_called_one(token_file):
    class Fail(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 5:
                raise RuntimeError("a broken disk")

    run = Run(token_file, callbacks=(Fail(),))
    with pytest.raises(RuntimeError, match="a broken disk"):
        run.fit()
    assert torch.load("checkpoints/last.ckpt", weights_only=True)["global_step"] == 4
    assert run.summary()["status"] == "failed"


def test_workers_build_the_same_batches(token_file):
    weights = []
    for workers in (0, 2):
        run = Run(token_file, max_steps=3)
        run.data.corpus.num_workers = workers
        weights.append(run.fit().module.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_split_without_enough_text_is_named(token_file):
    corpus, text = TextFiles(files="unused"), token_file(TEXT)
    with pytest.raises(UserError, match="the training split has 10 tokens, fewer than model.block_size=16"):
        TextDataModule(token_file("too short"), text, corpus=corpus, block_size=16, seed=0)
    with pytest.raises(UserError, match="the validation split holds no text"):
        TextDataModule(text, token_file(""), corpus=corpus, block_size=16, seed=0)
    TextDataModule(text, token_file("a"), corpus=corpus, block_size=16, seed=0)  # little is enough to validate on


def test_lines_tell_step_loss_speed_and_time_left(token_file, monkeypatch, capsys):
    monkeypatch.setattr("tinygpt.training.progress.SECONDS_BETWEEN_LINES", 0)
    Run(token_file, max_steps=4, eval_every=4).fit()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 2/4  loss ")
    assert "tokens/s" in lines[0]
    assert "left" in lines[0]
    assert lines[2].startswith("step 4/4  validation loss ")
    assert "bits per byte  (best so far)" in lines[2]


@pytest.mark.slow
def test_compiled_training_learns_the_same_under_the_same_names(token_file):
    eager, compiled = Run(token_file, max_steps=20).fit(), Run(token_file, max_steps=20, compile=True).fit()
    assert list(compiled.module.state_dict()) == list(eager.module.state_dict())
    assert compiled.metrics.val_loss == pytest.approx(eager.metrics.val_loss, rel=1e-4)
    assert compiled.metrics.train_loss == pytest.approx(eager.metrics.train_loss, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_gpu_trains_in_every_precision(token_file, precision: str, compile: bool):
    run = Run(token_file, max_steps=60, compile=compile, accelerator="cuda", precision=precision).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 3.2
    batch = next(iter(run.data.train_dataloader()))
    assert all(tensor.is_pinned() for tensor in batch)
