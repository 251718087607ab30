"""A text's loss, against one token at a time."""

from math import exp, log

import pytest
import torch

from tests.conftest import small
from tinygpt.generation.scoring import score
from tinygpt.model import GPT


@pytest.fixture
def gpt(each_gpt: GPT) -> GPT:
    return each_gpt


def slow(gpt: GPT, ids: list[int], begin_of) -> float:
    """The mean loss of every id but the first, each from the ids between begin_of(place) and itself."""
    losses = []
    for place in range(1, len(ids)):
        logits = gpt(torch.tensor([ids[begin_of(place) : place]]))[0, -1]
        losses.append(-logits.log_softmax(dim=-1)[ids[place]].item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("n", [2, 5, 8, 9, 10, 17, 30])
def test_whole_windows_are_those_of_validation(gpt: GPT, n: int):
    ids = torch.randint(11, (n,)).tolist()
    found = score(gpt, ids, n_bytes=3 * n)
    assert found.loss == pytest.approx(slow(gpt, ids, lambda place: (place - 1) // 8 * 8), abs=1e-5)
    assert found.perplexity == pytest.approx(exp(found.loss))
    assert found.bits_per_byte == pytest.approx(found.loss * (n - 1) / log(2) / (3 * n))


@pytest.mark.parametrize("stride", [1, 3, 4, 7])
@pytest.mark.parametrize("n", [2, 9, 10, 17, 30])
def test_a_stride_gives_every_token_as_much_before_it_as_there_is(gpt: GPT, n: int, stride: int):
    ids = torch.randint(11, (n,)).tolist()

    def begin(place: int) -> int:
        """Of the first window, in steps of the stride and the last at the end, that reaches this place."""
        begins = [*range(0, max(1, n - 1 - 8), stride), max(0, n - 1 - 8)]
        return next(begin for begin in begins if begin + 8 >= place)

    assert score(gpt, ids, 1, stride).loss == pytest.approx(slow(gpt, ids, begin), abs=1e-5)


def test_a_stride_of_one_sees_a_whole_window_before_each_token():
    gpt = small("modern")
    ids = torch.randint(11, (20,)).tolist()
    assert score(gpt, ids, 1, 1).loss == pytest.approx(slow(gpt, ids, lambda place: max(0, place - 8)), abs=1e-5)


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_out_of_range_is_refused(stride: int):
    with pytest.raises(ValueError, match=f"stride must be 1 to block_size=8, got {stride}"):
        score(small("gpt2"), [1, 2, 3], 2, stride)
