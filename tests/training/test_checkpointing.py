"""Which checkpoints there are, and what a run leaves when it is stopped or fails."""

import errno
import json
import os
import signal
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from tests.training.run import BLOCK, Run, checkpoints
from tinygpt import checkpoint
from tinygpt.training.interrupt import Interrupted
from tinygpt.training.module import LanguageModel


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
    ("number", "when"),
    [(signal.SIGTERM, "train"), (signal.SIGINT, "train"), (signal.SIGUSR1, "train"), (signal.SIGINT, "val")],
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
    assert str(stop.value) == number.name
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
