import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt.data.windows import TrainBatches, ValBatches


class Stream:
    """A stream of n targets in which every id is its own place; the end of text is 0 at both ends."""

    def __init__(self, n: int) -> None:
        import numpy as np

        self.ids = np.array([*range(n), 0])


def train_batches(n: int, T: int, B: int, **options) -> TrainBatches:
    return TrainBatches(Stream(n), T, B, **{"seed": 0} | options)  # type: ignore[arg-type]


def counted(batches, numbers) -> list[int]:
    """All targets that count."""
    return [t for k in numbers for t in batches[k][1].flatten().tolist() if t != -100]


@settings(max_examples=50)
@given(T=st.integers(1, 9), extra=st.integers(0, 40), B=st.integers(1, 5))
def test_an_epoch_has_every_token_as_a_target_exactly_once(T: int, extra: int, B: int):
    batches = train_batches(T + extra, T, B)
    epochs = B  # after B epochs of n_windows windows, n_windows batches are full
    targets = counted(batches, range(batches.n_windows))
    assert sorted(targets) == sorted(list(range(T + extra)) * epochs)


def test_targets_are_the_inputs_shifted_by_one():
    batches = train_batches(23, 5, 3)
    for k in range(10):
        inputs, targets = batches[k]
        assert inputs.shape == targets.shape == (3, 5)
        here = targets != -100
        assert torch.equal(targets[here], (inputs[here] + 1) % 23)


def test_a_batch_is_a_function_of_seed_and_number_alone():
    one, two = train_batches(40, 4, 3), train_batches(40, 4, 3)
    forward = [one[k] for k in range(9)]
    backward = [two[k] for k in reversed(range(9))][::-1]
    for (a, b), (c, d) in zip(forward, backward, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert not torch.equal(train_batches(40, 4, 3, seed=1)[0][0], forward[0][0])


def test_epochs_differ_in_order_and_in_layout():
    batches = train_batches(40, 4, 10)
    first, second = batches[0][0], batches[1][0]
    assert not torch.equal(first, second)
    assert {*first[:, 0].tolist()} != {*second[:, 0].tolist()}


@pytest.mark.parametrize(("n", "max_tokens", "expected"), [(23, None, 23), (23, 23, 23), (23, 9, 9), (23, 99, 23)])
def test_validation_has_each_of_the_first_targets_once_and_in_order(n: int, max_tokens: int | None, expected: int):
    batches = ValBatches(Stream(n), 5, 2, max_tokens)  # type: ignore[arg-type]
    assert batches.n_targets == expected
    assert counted(batches, range(len(batches))) == [i % n for i in range(1, expected + 1)]
    with pytest.raises(IndexError):
        batches[len(batches)]
