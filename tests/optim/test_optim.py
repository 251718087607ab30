"""Which parameters are optimised how, and how learning rates rise and fall."""

import pytest

from tinygpt.model import GPT2
from tinygpt.optim.adamw import adamw
from tinygpt.optim.cosine import Cosine
from tinygpt.optim.schedule import Schedule
from tinygpt.optim.wsd import WSD


def test_matrices_decay_and_vectors_do_not(gpt: GPT2):
    decayed, kept = adamw(gpt, weight_decay=0.3).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in kept["params"]} == {1}
    assert len(decayed["params"]) + len(kept["params"]) == len(list(gpt.parameters()))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_decay_out_of_its_range_is_refused(gpt: GPT2, value: float):
    with pytest.raises(ValueError, match=f"weight_decay must be at least 0 and finite, got {value}"):
        adamw(gpt, weight_decay=value)


@pytest.mark.parametrize("schedule", [Cosine(warmup_steps=3), WSD(warmup_steps=3)])
def test_the_warm_up_rises_by_steps_whatever_the_length_of_the_run(schedule: Schedule):
    assert [schedule(step, 0.0) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert schedule(1, 0.9) == pytest.approx(schedule(9, 0.9) / 2)


def test_cosine_falls_all_the_way_to_its_final_fraction():
    factor = Cosine(warmup_steps=0, final_fraction=0.1)
    assert [factor(9, done) for done in (0.0, 0.5, 1.0, 1.2)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert factor(9, 0.25) == pytest.approx(0.1 + 0.9 * (1 + 0.5**0.5) / 2)


def test_wsd_is_level_and_then_falls_in_a_line():
    factor = WSD(warmup_steps=0, final_fraction=0.2, cooldown=0.5)
    assert [factor(9, done) for done in (0.0, 0.3, 0.5)] == [1.0, 1.0, 1.0]
    assert [factor(9, done) for done in (0.75, 1.0, 1.2)] == pytest.approx([0.6, 0.2, 0.2])


@pytest.mark.parametrize(
    ("schedule", "keywords", "words"),
    [
        (Cosine, {"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        (Cosine, {"final_fraction": 1.5}, "final_fraction must lie between 0 and 1, got 1.5"),
        (WSD, {"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        (WSD, {"cooldown": 0.0}, "cooldown must be above 0 and at most 1, got 0.0"),
        (WSD, {"cooldown": 1.1}, "cooldown must be above 0 and at most 1, got 1.1"),
    ],
)
def test_impossible_schedules_are_refused(schedule: type[Schedule], keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        schedule(**keywords)
