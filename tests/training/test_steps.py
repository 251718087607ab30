"""What a training step does, and the figures that a run reports, on a tiny model and a tiny text."""

from math import log
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from tests.training.run import BATCH, BLOCK, TEXT, Run, checkpoints
from tinygpt.data.layouts import LAYOUTS
from tinygpt.model import next_token_loss
from tinygpt.optim.cosine import Cosine

NAMES = ("Emma", "Olivia", "Ava", "a name that is longer than a row can be", "Bo", "Sophia")


def test_a_run_learns_and_writes_what_it_reached(token_file):
    run = Run(token_file, max_steps=60, eval_every=20).fit()
    summary = run.summary()
    assert summary["status"] == "completed"
    assert summary["step"] == 60
    n_targets = sum(run.data.train_batches()[k].n_targets for k in range(60))
    assert 59 * BLOCK * BATCH < n_targets < 60 * BLOCK * BATCH  # an epoch's last window is shorter
    assert summary["tokens_seen"] == n_targets
    assert summary["epoch"] == pytest.approx(n_targets / (len(TEXT) + 1))
    assert summary["val_loss"] < 3.0 < log(257)
    assert summary["best_val_loss"] <= summary["val_loss"]
    assert summary["train_seconds"] > 0
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens_seen"] / summary["train_seconds"])
    assert summary["flops"] == n_targets * run.module.model.flops_per_token()
    assert summary["utilisation"] == pytest.approx(summary["flops"] / summary["train_seconds"] / 1e12)
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_accumulated_batches_equal_one_large_batch(token_file, layout):
    """Also where rows are of unequal length: a mean of means would weigh the tokens of short rows more."""
    gradients = []

    class Keep(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            gradients.append([p.grad.clone() for p in pl_module.parameters() if p.grad is not None])

    for batch_size, accumulate in ((4, 1), (2, 2)):
        run = Run(token_file, max_steps=1, accumulate=accumulate, callbacks=(Keep(),), texts=NAMES, layout=layout)
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
    assert rates == pytest.approx([1e-2 * Cosine(warmup_steps=1)(step, step / 4) for step in range(4)])


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
    run = Run(token_file, max_steps=2, log_every=1, plugins=(MixedPrecision("16-mixed", "cpu", scaler),)).fit()
    for ours, theirs in zip(run.records()[:2], fp32[:2], strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.02)
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.01)


def test_bf16_trains_with_a_fused_optimizer_and_clipping(token_file):
    run = Run(token_file, max_steps=40, plugins=(MixedPrecision("bf16-mixed", "cpu"),)).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 3.5
    assert all(p.dtype == torch.float32 for p in run.module.parameters())


def test_clipping_by_value_is_refused(token_file):
    run = Run(token_file)
    run.trainer.gradient_clip_algorithm = "value"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="gradients are clipped by their norm, not by value"):
        run.fit()


def test_one_batch_is_learned_by_heart(token_file):
    run = Run(token_file, max_steps=300, eval_every=300, overfit=True, lr=3e-2).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 0.15


def test_lines_tell_step_loss_speed_and_time_left(token_file, monkeypatch, capsys):
    monkeypatch.setattr("tinygpt.training.progress.SECONDS_BETWEEN_LINES", 0)
    Run(token_file, max_steps=4, eval_every=4).fit()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 2/4  loss ")
    assert "tokens/s, 0% of the peak" in lines[0]
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
    assert batch.ids.is_pinned()
    assert batch.targets.is_pinned()


def test_padded_and_packed_documents_have_the_same_loss_per_token(token_file):
    """Every document alone in its row, or behind others that it does not see: the same sum over the same targets."""
    losses = []
    for layout in ("padded", "packed"):
        run = Run(token_file, texts=NAMES, layout=layout, max_steps=1)
        model = run.module.model.eval()
        nats = sum(
            next_token_loss(
                model(batch.ids, padding=batch.padding, documents=batch.documents), batch.targets, reduction="sum"
            ).item()
            for batch in (run.data.val_batches()[k] for k in range(len(run.data.val_batches())))
        )
        losses.append(nats / run.data.val_layout.n_targets)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_one_batch_weighs_the_same_however_often_it_is_accumulated(token_file):
    run = Run(token_file, texts=NAMES, layout="padded", max_steps=1, overfit=True, accumulate=3, log_every=1).fit()
    batch = run.data.train_batches()[0]
    assert batch.weight == 1.0
    assert run.metrics.tokens_seen == 3 * batch.n_targets


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_documents_are_learned_in_rows_of_their_own(token_file, layout):
    run = Run(token_file, texts=NAMES, layout=layout, max_steps=150, eval_every=150, lr=2e-2).fit()
    assert run.metrics.val_loss is not None
    assert run.metrics.val_loss < 1.0
    assert run.metrics.tokens_seen == sum(run.data.train_batches()[k].n_targets for k in range(150))
