"""Each sampler against a slow, obvious version, and what they do together."""

from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinygpt.generation.samplers.bias import logit_bias
from tinygpt.generation.samplers.frequency import frequency_penalty
from tinygpt.generation.samplers.min_p import keep_min_p
from tinygpt.generation.samplers.no_repeat import no_repeat_ngram
from tinygpt.generation.samplers.presence import presence_penalty
from tinygpt.generation.samplers.repetition import repetition_penalty
from tinygpt.generation.samplers.top_k import keep_top_k
from tinygpt.generation.samplers.top_p import keep_top_p
from tinygpt.generation.sampling import Sampling

V = 5
logits_of = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=V, max_size=V), min_size=1, max_size=3)
ids_of = st.lists(st.integers(0, V - 1), max_size=12)


def softmax(row: list[float]) -> list[float]:
    powers = [exp(x - max(row)) for x in row]
    return [power / sum(powers) for power in powers]


def same(ours: torch.Tensor, slow: list[list[float]]) -> None:
    torch.testing.assert_close(ours, torch.tensor(slow, dtype=torch.float64))


def tensor(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@given(rows=logits_of, seen=ids_of, penalty=st.floats(0.5, 2))
def test_repetition_penalty_makes_what_was_said_less_likely_once(rows, seen, penalty):
    slow = [[(x * penalty if x < 0 else x / penalty) if i in seen else x for i, x in enumerate(row)] for row in rows]
    same(repetition_penalty(tensor(rows), [seen] * len(rows), penalty), slow)


def test_repetition_penalty_multiplies_negative_logits_and_divides_positive_ones():
    result = repetition_penalty(tensor([[-2.0, 3.0, 1.0]]), [[0, 0, 1]], 1.5)
    assert result.tolist() == [[-3.0, 2.0, 1.0]]


@given(rows=logits_of, new=ids_of, penalty=st.floats(-2, 2))
def test_presence_and_frequency_penalties_subtract(rows, new, penalty):
    once = [[x - penalty * (i in new) for i, x in enumerate(row)] for row in rows]
    same(presence_penalty(tensor(rows), [new] * len(rows), penalty), once)
    each = [[x - penalty * new.count(i) for i, x in enumerate(row)] for row in rows]
    same(frequency_penalty(tensor(rows), [new] * len(rows), penalty), each)


@given(rows=logits_of, seen=ids_of, n=st.integers(1, 4))
def test_no_run_of_n_tokens_comes_twice(rows, seen, n):
    runs = {tuple(seen[i : i + n]) for i in range(len(seen) - n + 1)}
    start = tuple(seen[len(seen) - n + 1 :]) if n > 1 else ()
    barred = [len(start) == n - 1 and (*start, i) in runs for i in range(V)]
    slow = [row if all(barred) else [-inf if barred[i] else x for i, x in enumerate(row)] for row in rows]
    same(no_repeat_ngram(tensor(rows), [seen] * len(rows), n), slow)


@given(rows=logits_of, bias=st.dictionaries(st.integers(0, V - 1), st.floats(-5, 5), max_size=V))
def test_a_bias_is_added(rows, bias):
    same(logit_bias(tensor(rows), bias), [[x + bias.get(i, 0) for i, x in enumerate(row)] for row in rows])


def test_a_bias_may_forbid_some_tokens_but_not_all_and_none_that_is_not_there():
    assert logit_bias(tensor([[1.0, 2.0]]), {0: -inf}).tolist() == [[-inf, 2.0]]
    with pytest.raises(ValueError, match="no token is left: logit_bias forbids all"):
        logit_bias(tensor([[1.0, 2.0]]), {0: -inf, 1: -inf})
    for token in (-1, 2):
        with pytest.raises(ValueError, match=f"logit_bias names the id {token}; ids are 0 to 1"):
            logit_bias(tensor([[1.0, 2.0]]), {token: 1.0})


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [torch.nonzero(row > -torch.inf).flatten().tolist() for row in logits]


@given(rows=logits_of, k=st.integers(1, V + 2))
def test_top_k_keeps_exactly_k(rows, k):
    for row, ids, ours in zip(rows, kept(keep_top_k(tensor(rows), k)), keep_top_k(tensor(rows), k), strict=True):
        assert len(ids) == min(k, V)
        assert sorted((row[i] for i in ids), reverse=True) == sorted(row, reverse=True)[:k]
        assert all(ours[i] == row[i] for i in ids)


def test_top_k_keeps_exactly_k_even_under_ties():
    assert len(kept(keep_top_k(tensor([[5.0, 5.0, 5.0, 5.0]]), 2))[0]) == 2


@given(rows=logits_of, p=st.floats(0.01, 1))
def test_top_p_keeps_the_fewest_likeliest_that_reach_p(rows, p):
    for row, ids in zip(rows, kept(keep_top_p(tensor(rows), p)), strict=True):
        probability = softmax(row)
        order = sorted(range(V), key=lambda i: (-row[i], i))
        expected, together = [], 0.0
        for i in order:
            expected.append(i)
            together += probability[i]
            if together >= p - 1e-6:
                break
        assert ids == sorted(expected)


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.8, [0, 3]), (0.81, [0, 1, 3]), (0.5, [3]), (0.01, [3]), (0.9, [0, 1, 3]), (1.0, [0, 1, 2, 3])],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_keeps_the_token_that_crosses_p(p: float, expected: list[int], dtype: torch.dtype):
    logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]], dtype=dtype).log()
    assert kept(keep_top_p(logits, p))[0] == expected


@given(rows=logits_of, p=st.floats(0.01, 0.99))
def test_min_p_keeps_what_is_at_least_a_share_of_the_likeliest(rows, p):
    for row, ids in zip(rows, kept(keep_min_p(tensor(rows), p)), strict=True):
        probability = softmax(row)
        clear = [i for i in range(V) if abs(probability[i] / max(probability) - p) > 1e-9]
        assert [i for i in ids if i in clear] == [i for i in clear if probability[i] >= p * max(probability)]
        assert row.index(max(row)) in ids


def test_min_p_of_one_keeps_the_likeliest_alone():
    assert kept(keep_min_p(tensor([[1.0, 3.0, 2.0]]), 1.0)) == [[1]]


def draw(logits: torch.Tensor, uniform: torch.Tensor, new: list[int] | None = None, **settings) -> torch.Tensor:
    rows = [list(new or [])] * len(logits)
    return torch.tensor(Sampling(**settings).next_token(logits, uniform.tolist(), [[]] * len(logits), rows))


def frequencies(logits: torch.Tensor, n: int = 20_000, **settings) -> torch.Tensor:
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # evenly spread numbers: the draw inverts exactly
    return torch.bincount(draw(logits.expand(n, -1), uniform, **settings), minlength=logits.shape[-1]) / n


LOGITS = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log()


def test_tokens_are_drawn_by_their_probabilities():
    torch.testing.assert_close(frequencies(LOGITS), torch.tensor([0.3, 0.1, 0.1, 0.5]), atol=1e-3, rtol=0)


def test_temperature_divides_the_logits():
    expected = (LOGITS[0] / 0.5).softmax(dim=-1)
    torch.testing.assert_close(frequencies(LOGITS, temperature=0.5), expected, atol=1e-3, rtol=0)


def test_top_k_draws_from_the_k_likeliest_alone():
    torch.testing.assert_close(frequencies(LOGITS, top_k=2), torch.tensor([0.375, 0.0, 0.0, 0.625]), atol=1e-3, rtol=0)


def test_samplers_act_in_the_order_of_their_names():
    """Penalties, bias, temperature, top-k, top-p, min-p: each pair told apart by what is left."""

    def left(**settings) -> list[int]:
        return torch.nonzero(frequencies(LOGITS, n=2000, **settings)).flatten().tolist()

    assert left(top_p=0.8) == [0, 3]
    assert left(top_p=0.8, temperature=2.0) == [0, 1, 3]  # flatter first, then a third token is taken in
    assert left(top_k=2, top_p=0.95) == [0, 3]  # of the two, which then hold all
    assert left(top_p=0.5, min_p=0.5) == [3]
    assert left(min_p=0.5) == [0, 3]
    assert left(min_p=0.5, temperature=3.0) == [0, 1, 2, 3]
    assert left(top_k=1, logit_bias={1: 5.0}) == [1]  # before the choice
    assert left(top_k=1, new=[3], presence_penalty=1.0) == [0]
    assert left(top_k=1, new=[3, 3], frequency_penalty=0.3) == [0]
    assert left(temperature=0, logit_bias={1: 5.0}) == [1]


NEUTRAL = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram": None,
    "logit_bias": {},
    "temperature": 1.0,
    "top_k": None,
    "top_p": 1.0,
    "min_p": 0.0,
}


@given(rows=logits_of, u=st.floats(0, 1, exclude_max=True), new=ids_of, name=st.sampled_from(sorted(NEUTRAL)))
def test_at_its_neutral_value_a_sampler_changes_nothing(rows, u, new, name):
    uniform = torch.full((len(rows),), u, dtype=torch.float64)
    logits = tensor(rows)
    assert torch.equal(draw(logits, uniform, new), draw(logits, uniform, new, **{name: NEUTRAL[name]}))


def test_a_rows_draw_depends_on_its_own_numbers_alone():
    logits, uniform = torch.randn(6, 9), torch.rand(6, dtype=torch.float64)
    together = draw(logits, uniform, top_p=0.9)
    assert together.tolist() == [draw(logits[i : i + 1], uniform[i : i + 1], top_p=0.9).item() for i in range(6)]


def test_temperature_zero_takes_the_largest_whatever_the_number():
    logits = torch.randn(5, 7)
    for u in (0.0, 0.5, 0.999):
        uniform = torch.full((5,), u, dtype=torch.float64)
        assert torch.equal(draw(logits, uniform, temperature=0), logits.argmax(dim=-1))


def test_a_tiny_temperature_takes_the_largest():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert draw(logits, torch.tensor([0.9], dtype=torch.float64), temperature=1e-309).tolist() == [1]


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_draw_a_possible_token(u: float):
    logits = torch.tensor([[-1e9, 0.0, -1e9]])
    assert draw(logits, torch.tensor([u], dtype=torch.float64)).tolist() == [1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float):
    with pytest.raises(ValueError, match="logits are not finite"):
        draw(torch.tensor([[0.0, bad]]), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0 and finite, got 0.0"),
        ({"presence_penalty": inf}, "presence_penalty must be finite, got inf"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty must be finite, got nan"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram must be at least 1, got 0"),
        ({"logit_bias": {1: inf}}, "logit_bias must be numbers below infinity"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0 and finite, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be at least 0 and finite, got nan"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"min_p": 1.1}, "min_p must be at least 0 and at most 1, got 1.1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Sampling(**settings)


def test_log_of_p_is_what_min_p_compares_with():
    assert kept(keep_min_p(tensor([[0.0, log(0.2), log(0.05)]]), 0.1)) == [[0, 1]]
