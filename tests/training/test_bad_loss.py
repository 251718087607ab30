"""A loss or a gradient that is no number: named, its update never made, and fp16's scaling not mistaken for it."""

from math import log

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from tests.training.run import Run
from tinygpt.errors import UserError


class Spoil(pl.Callback):
    """Makes a loss, or a gradient, one that is no number, in some batches; keeps the weights after each step."""

    def __init__(self, value: float, batches: tuple[int, ...], what: str = "loss") -> None:
        self.value, self.batches, self.what = value, batches, what
        self.begins: dict[int, list[int]] = {}
        self.weights: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.begins[batch_idx] = batch.begin.tolist()
        if self.what == "loss" and batch_idx in self.batches:
            original = pl_module.model.head.forward
            pl_module.model.head.forward = lambda x: original(x) * self.value

    def on_after_backward(self, trainer, pl_module):
        pl_module.model.head.__dict__.pop("forward", None)
        if self.what == "gradient" and trainer.fit_loop.total_batch_idx in self.batches:
            pl_module.model.head.weight.grad[0, 0] = self.value

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append(pl_module.model.head.weight.detach().clone())


@pytest.mark.parametrize(
    ("value", "what", "words"),
    [
        (float("nan"), "loss", "the loss is nan at step 3"),
        (float("inf"), "loss", "the loss is nan at step 3"),  # inf - inf
        (float("nan"), "gradient", "the gradient's norm is nan at step 3"),
        (float("inf"), "gradient", "the gradient's norm is inf at step 3"),
    ],
)
def test_a_loss_or_gradient_that_is_no_number_stops_the_run_before_its_update(token_file, value, what, words):
    spoil = Spoil(value, (2,), what)
    run = Run(token_file, eval_every=2, callbacks=(spoil,))
    with pytest.raises(UserError) as stop:
        run.fit()
    named = ", ".join(f"{begin:,}" for begin in spoil.begins[2])
    assert str(stop.value) == (
        f"{words}, whose windows begin at the training tokens {named}; its update was not made."
        " Try a lower optimizer.lr, or on_bad_loss=skip"
    )
    assert (run.summary()["status"], run.summary()["reason"]) == ("failed", str(stop.value))
    assert torch.load("checkpoints/last.ckpt", weights_only=True)["global_step"] == 2
    assert torch.equal(run.module.model.head.weight, spoil.weights[1])


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_skipped_step_changes_nothing_and_the_run_goes_on(token_file, capsys, what: str):
    spoil = Spoil(float("nan"), (2,), what)
    run = Run(token_file, log_every=1, on_bad_loss="skip", callbacks=(spoil,)).fit()
    assert torch.equal(spoil.weights[2], spoil.weights[1])
    assert not torch.equal(spoil.weights[3], spoil.weights[2])
    states = run.module.optimizer.state.values()
    assert {state["step"].item() for state in states} == {5.0}  # of six steps
    assert (run.summary()["step"], run.summary()["skipped_steps"]) == (6, 1)
    losses = [record["train_loss"] for record in run.records() if "train_loss" in record]
    assert [bool(torch.tensor(loss).isfinite()) for loss in losses] == [True, True, False, True, True, True]
    words = {"loss": "the loss is nan at step 3", "gradient": "the gradient's norm is nan at step 3"}
    assert words[what] in capsys.readouterr().err


def test_of_accumulated_batches_the_bad_one_is_named_and_none_counts(token_file, capsys):
    spoil = Spoil(float("nan"), (3,))
    run = Run(token_file, accumulate=2, on_bad_loss="skip", callbacks=(spoil,), log_every=3).fit()
    named = ", ".join(f"{begin:,}" for begin in spoil.begins[3])
    assert f"at step 2, whose windows begin at the training tokens {named};" in capsys.readouterr().err
    assert torch.equal(spoil.weights[3], spoil.weights[1])
    records = [record["train_loss"] for record in run.records() if "train_loss" in record]
    assert all(torch.tensor(records).isfinite())  # the mean of the steps that counted


def test_gradients_that_overflow_under_fp16_scaling_are_not_mistaken_for_bad_ones(token_file, capsys):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    run = Run(token_file, max_steps=60, plugins=(MixedPrecision("16-mixed", "cpu", scaler),)).fit()
    assert scaler.get_scale() < 2.0**40
    assert run.summary()["skipped_steps"] == 0
    assert run.summary()["val_loss"] < log(257)
    assert "its update was not made" not in capsys.readouterr().err


def test_a_bad_loss_under_fp16_scaling_is_bad(token_file):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugins = (MixedPrecision("16-mixed", "cpu", scaler),)
    with pytest.raises(UserError, match="the loss is nan at step 3"):
        Run(token_file, plugins=plugins, callbacks=(Spoil(float("nan"), (2,)),)).fit()
    spoil = Spoil(float("nan"), (2,))
    run = Run(token_file, on_bad_loss="skip", plugins=plugins, callbacks=(spoil,)).fit()
    assert torch.equal(spoil.weights[2], spoil.weights[1])
    assert run.summary()["skipped_steps"] == 1
