import pytest
import torch

from tinygpt.generation.sampling import keep_top_k, keep_top_p, next_token


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [torch.nonzero(row > -torch.inf).flatten().tolist() for row in logits]


def test_top_k_keeps_exactly_k_even_under_ties():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    result = keep_top_k(logits, 2)
    assert kept(result)[0] == [1, 2]
    assert len(kept(result)[1]) == 2
    assert result[0, 1] == 3.0


@pytest.mark.parametrize("k", [4, 99])
def test_top_k_of_the_whole_vocabulary_or_more_keeps_all(k: int):
    logits = torch.randn(2, 4)
    assert torch.equal(keep_top_k(logits, k), logits)


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.8, [0, 3]), (0.81, [0, 1, 3]), (0.5, [3]), (0.01, [3]), (0.9, [0, 1, 3]), (1.0, [0, 1, 2, 3])],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_keeps_the_token_that_crosses_p(p: float, expected: list[int], dtype: torch.dtype):
    logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]], dtype=dtype).log()
    assert kept(keep_top_p(logits, p))[0] == expected


def frequencies(logits: torch.Tensor, n: int = 20_000, **settings) -> torch.Tensor:
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # evenly spread numbers: the draw inverts exactly
    tokens = next_token(logits.expand(n, -1), uniform, **settings)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / n


LOGITS = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log()


def test_tokens_are_drawn_by_their_probabilities():
    torch.testing.assert_close(frequencies(LOGITS), torch.tensor([0.3, 0.1, 0.1, 0.5]), atol=1e-3, rtol=0)


def test_temperature_divides_the_logits():
    expected = (LOGITS[0] / 0.5).softmax(dim=-1)
    torch.testing.assert_close(frequencies(LOGITS, temperature=0.5), expected, atol=1e-3, rtol=0)


def test_temperature_comes_before_top_p():
    # At temperature 2 the probabilities are flatter, and 0.8 takes in a third token.
    assert (frequencies(LOGITS, top_p=0.8) > 0).tolist() == [True, False, False, True]
    assert (frequencies(LOGITS, top_p=0.8, temperature=2.0) > 0).sum() == 3


def test_top_k_draws_from_the_k_likeliest_alone():
    torch.testing.assert_close(frequencies(LOGITS, top_k=2), torch.tensor([0.375, 0.0, 0.0, 0.625]), atol=1e-3, rtol=0)


def test_temperature_zero_takes_the_largest_whatever_the_number():
    logits = torch.randn(5, 7)
    for u in (0.0, 0.5, 0.999):
        uniform = torch.full((5,), u, dtype=torch.float64)
        assert torch.equal(next_token(logits, uniform, temperature=0), logits.argmax(dim=-1))


def test_a_tiny_temperature_takes_the_largest():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert next_token(logits, torch.tensor([0.9], dtype=torch.float64), temperature=1e-309).tolist() == [1]


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_draw_a_possible_token(u: float):
    logits = torch.tensor([[-1e9, 0.0, -1e9]])
    assert next_token(logits, torch.tensor([u], dtype=torch.float64)).tolist() == [1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float):
    with pytest.raises(ValueError, match="logits are not finite"):
        next_token(torch.tensor([[0.0, bad]]), torch.zeros(1, dtype=torch.float64))
