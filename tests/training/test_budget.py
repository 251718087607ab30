"""How long a run is: in steps, in seconds of training, or both."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import TINY
from tests.training.run import Run
from tinygpt import checkpoint
from tinygpt.training import budget
from tinygpt.training.budget import Budget, seconds_of


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes whenever somebody looks at the clock."""
    seconds = count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


def test_what_is_spent_first_ends_the_run():
    both = Budget(10, "00:00:01:40")
    both.seconds = 20.0
    assert both.progress(1) == 0.2
    assert both.progress(5) == 0.5
    assert Budget(10).progress(10) == 1.0


def test_time_left_is_the_budgets_or_follows_from_the_pace_of_the_steps():
    timed, stepped = Budget(-1, "00:00:01:40"), Budget(10)
    timed.seconds = stepped.seconds = 20.0
    assert timed.seconds_left(7) == pytest.approx(80.0)
    assert stepped.seconds_left(4) == pytest.approx(30.0)
    assert (timed.of(7), stepped.of(7)) == ("7", "7/10")


def test_the_clock_runs_only_while_training_does(ticks):
    clock = Budget(10)
    assert clock.read_clock() == 0.0
    clock.run()  # at 0
    clock.run()
    assert clock.read_clock() == 1.0
    clock.rest()
    assert clock.read_clock() == 2.0
    clock.run()  # at 3
    assert clock.read_clock() == 3.0


@pytest.mark.parametrize(("text", "seconds"), [("00:00:05:00", 300.0), ("1:2:3:4", 93784.0), ("0:0:0:90", 90.0)])
def test_a_time_is_read(text: str, seconds: float):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["5", 300, {"minutes": 5}, "05:00", "00:00:00:00", "00:00:-1:00", "1h", ""])
def test_another_time_is_refused(text: Any):
    with pytest.raises(ValueError, match="max_time must be DAYS:HOURS:MINUTES:SECONDS, such as 00:00:05:00, got"):
        seconds_of(text)


def test_a_run_by_time_ends_with_it_validated_and_with_its_learning_rate_down(token_file, ticks):
    run = Run(token_file, max_steps=-1, max_time="00:00:00:40", log_every=1).fit()
    summary = run.summary()
    assert summary["status"] == "completed"
    assert 40 <= summary["train_seconds"] < 44
    assert summary["val_loss"] == run.metrics.val_loss
    records = run.records()
    assert records[-1]["step"] == summary["step"]
    assert "val_loss" in records[-1]
    rates = [record["lr"] for record in records if "lr" in record]
    assert rates[0] < rates[1] > rates[-1]
    assert rates[-1] < 0.12 * max(rates)


def test_a_run_by_time_goes_on_with_the_time_it_has_spent(command, ticks):
    words = [word for word in TINY if not word.startswith("trainer.max_steps")]
    status, out, _ = command(*words, "trainer.max_time=00:00:00:30")
    assert status == 0
    assert "step 4  validation loss" in out
    first = checkpoint.load("run/checkpoints/last.ckpt")
    status, out, err = command("resume=run", "trainer.max_time=00:00:01:00")
    assert status == 0
    assert "trainer.max_time was 00:00:00:30 and is 00:00:01:00" in err
    second = checkpoint.load("run/checkpoints/last.ckpt")
    assert first["global_step"] < second["global_step"] < 3 * first["global_step"]
    status, out, err = command("resume=run")
    assert (status, err) == (0, "")
    assert "no step was left; for more: python train.py resume=run trainer.max_time=00:00:02:00" in out
    again = checkpoint.load("run/checkpoints/last.ckpt")
    assert again["global_step"] == second["global_step"]
    assert torch.equal(again["state_dict"]["model.head.weight"], second["state_dict"]["model.head.weight"])


def test_a_run_by_time_ends_with_a_whole_step(token_file, ticks):
    run = Run(token_file, max_steps=-1, max_time="00:00:00:20", accumulate=3).fit()
    assert run.metrics.tokens_seen == sum(run.data.train_batches()[k].n_targets for k in range(3 * run.metrics.step))


def test_steps_that_were_given_beside_a_time_count_when_the_run_goes_on(command):
    assert command(*TINY, "trainer.max_time=01:00:00:00")[0] == 0
    status, out, err = command("resume=run")
    assert (status, err) == (0, "")
    assert "no step was left; for more: python train.py resume=run trainer.max_steps=12" in out


def test_steps_count_beside_a_time_only_where_they_are_given(command):
    status, out, _ = command(*TINY, "trainer.max_time=01:00:00:00")
    assert status == 0
    assert "step 6/6  validation loss" in out
