import pytest

from tinygpt.model import GPT2
from tinygpt.optim.adamw import adamw
from tinygpt.optim.cosine import Cosine


def test_matrices_decay_and_vectors_do_not(gpt: GPT2):
    decayed, kept = adamw(gpt, weight_decay=0.3).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in kept["params"]} == {1}
    assert len(decayed["params"]) + len(kept["params"]) == len(list(gpt.parameters()))


def test_cosine_rises_falls_and_ends_at_its_final_fraction():
    factor = Cosine(warmup_steps=3, final_fraction=0.1)
    assert [factor(step, 103) for step in range(3)] == pytest.approx([0.25, 0.5, 0.75])
    assert factor(3, 103) == 1.0
    assert factor(53, 103) == pytest.approx(0.55)
    assert factor(103, 103) == pytest.approx(0.1)
    assert factor(200, 103) == pytest.approx(0.1)
    assert all(factor(step + 1, 103) < factor(step, 103) for step in range(3, 103))


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert [Cosine(warmup_steps=3)(step, 2) for step in range(2)] == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        ({"final_fraction": 1.5}, "final_fraction must lie between 0 and 1, got 1.5"),
    ],
)
def test_impossible_schedules_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Cosine(**keywords)
