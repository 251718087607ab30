from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygpt.data.batches import Batch, TrainBatches, ValBatches
from tinygpt.data.layouts import LAYOUTS, Packed, Padded, Windows

every_layout = pytest.mark.parametrize("name", LAYOUTS)


def stream(*lengths: int):
    """Documents of these lengths, as a token file has them; ids count up from 1, the end of text is 0."""
    ids, n = [0], 1
    for length in lengths:
        ids += [*range(n, n + length), 0]
        n += length
    array = np.array(ids)
    return SimpleNamespace(ids=array, parts=lambda: np.array_split(array, 3))


def train_batches(name: str, lengths: tuple[int, ...], T: int, B: int, **options) -> TrainBatches:
    tokens = stream(*lengths)
    return TrainBatches(tokens, LAYOUTS[name](tokens, T), B, **{"seed": 0} | options)  # type: ignore[arg-type]


def counted(*batches: Batch) -> list[int]:
    """All targets that count."""
    targets = [t for batch in batches for t in batch.targets.flatten().tolist() if t != -100]
    assert len(targets) == sum(batch.n_targets for batch in batches)
    return targets


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=8).map(tuple)


@every_layout
@settings(max_examples=50)
@given(lengths=lengths, T=st.integers(1, 9), B=st.integers(1, 5))
def test_an_epoch_has_every_token_as_a_target_exactly_once(name: str, lengths: tuple[int, ...], T: int, B: int):
    batches = train_batches(name, lengths, T, B)
    targets = counted(*(batches[k] for k in range(batches.layout.n_rows)))  # B epochs
    assert sorted(targets) == sorted(batches.tokens.ids[1:].tolist() * B)


@every_layout
@settings(max_examples=50)
@given(lengths=lengths, T=st.integers(1, 9))
def test_targets_are_the_inputs_shifted_by_one_and_documents_do_not_mix(name: str, lengths: tuple[int, ...], T: int):
    batches = train_batches(name, lengths, T, 3)
    following = dict(zip(batches.tokens.ids[1:-1].tolist(), batches.tokens.ids[2:].tolist(), strict=True))
    begins = {int(b) for a, b in zip(batches.tokens.ids[:-1], batches.tokens.ids[1:], strict=True) if a == 0}
    for k in range(5):
        batch = batches[k]
        assert (
            batch.ids.shape
            == batch.targets.shape
            == (3, batches.layout.width or int((batch.targets >= 0).sum(1).max()))
        )
        for i, t in zip(batch.ids.flatten().tolist(), batch.targets.flatten().tolist(), strict=True):
            assert t == -100 or (t in begins if i == 0 else following[i] == t)
        document = np.searchsorted(np.cumsum(lengths), np.maximum(batch.ids.numpy(), 1))  # 0 is in any of them
        here = (batch.targets != -100).numpy() & (batch.ids != 0).numpy()
        if batch.documents is not None:
            for row, numbers in enumerate(batch.documents.numpy()):
                pairs = {(int(a), int(b)) for a, b in zip(numbers[here[row]], document[row][here[row]], strict=True)}
                assert len({a for a, _ in pairs}) == len(pairs)  # one number, one document
        if batch.padding is not None:
            assert torch.equal(batch.padding, batch.targets != -100)
            assert all(len(set(document[row][here[row]])) <= 1 for row in range(3))


@every_layout
def test_a_batch_is_a_function_of_seed_and_number_alone(name: str):
    one, two = (train_batches(name, (5, 9, 2, 7, 3), 4, 3) for _ in range(2))
    forward = [one[k] for k in range(9)]
    backward = [two[k] for k in reversed(range(9))][::-1]
    for a, b in zip(forward, backward, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    other = train_batches(name, (5, 9, 2, 7, 3), 4, 3, seed=1)
    assert any(counted(other[k]) != counted(forward[k]) for k in range(9))


def test_epochs_of_windows_differ_in_order_and_in_layout():
    batches = train_batches("windows", (39,), 4, 10)
    first, second = batches[0].ids, batches[1].ids
    assert not torch.equal(first, second)
    assert {*first[:, 0].tolist()} != {*second[:, 0].tolist()}


def test_a_padded_row_is_a_document_and_a_long_one_is_cut():
    tokens = stream(2, 6)
    (batch,) = ValBatches(tokens, Padded(tokens, 4), 8)  # type: ignore[arg-type]
    assert batch.ids.tolist() == [[0, 1, 2, 0], [0, 3, 4, 5], [6, 7, 8, 0]]
    assert batch.targets.tolist() == [[1, 2, 0, -100], [3, 4, 5, 6], [7, 8, 0, -100]]
    assert batch.padding is not None
    assert batch.padding.tolist() == [[True, True, True, False], [True] * 4, [True, True, True, False]]


def test_a_long_document_can_be_truncated():
    tokens = stream(2, 6)
    (batch,) = ValBatches(tokens, Padded(tokens, 4, truncate=True), 8)  # type: ignore[arg-type]
    assert batch.targets.tolist() == [[1, 2, 0, -100], [3, 4, 5, 6]]
    packed = Packed(tokens, 4, truncate=True)  # type: ignore[arg-type]
    assert sorted(counted(*ValBatches(tokens, packed, 1))) == [0, 1, 2, 3, 4, 5, 6]  # type: ignore[arg-type]


def test_a_batch_is_padded_to_its_own_longest_row():
    tokens = stream(2, 6, 1, 1)
    widths = [batch.ids.shape[1] for batch in ValBatches(tokens, Padded(tokens, 16), 2)]  # type: ignore[arg-type]
    assert widths == [7, 2]


def test_packed_rows_hold_whole_documents_that_do_not_see_each_other():
    tokens = stream(4, 2, 1, 3)  # with their ends: 5, 3, 2, 4
    (batch,) = ValBatches(tokens, Packed(tokens, 7), 8)  # type: ignore[arg-type]
    assert batch.ids.tolist() == [[0, 1, 2, 3, 4, 0, 7], [0, 8, 9, 10, 0, 5, 6]]
    assert batch.targets.tolist() == [[1, 2, 3, 4, 0, 7, 0], [8, 9, 10, 0, 5, 6, 0]]
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 0, 0, 0, 1, 1], [2, 2, 2, 2, 3, 3, 3]]
    assert batch.padding is None


def test_what_a_packed_row_has_no_document_for_is_its_own():
    tokens = stream(2)
    (batch,) = ValBatches(tokens, Packed(tokens, 5), 8)  # type: ignore[arg-type]
    assert batch.targets.tolist() == [[1, 2, 0, -100, -100]]
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 0, -1, -1]]


def test_many_short_documents_fill_their_rows():
    lengths = tuple(np.random.default_rng(0).integers(1, 30, 500).tolist())
    tokens = stream(*lengths)
    packed = Packed(tokens, 64)  # type: ignore[arg-type]
    assert packed.n_targets / (packed.n_rows * 64) > 0.99


@every_layout
@pytest.mark.parametrize("max_targets", [1, 9, 26, 99])
def test_validation_has_each_of_the_first_targets_once(name: str, max_targets: int):
    tokens = stream(10, 4, 9)  # 26 targets
    layout = LAYOUTS[name](tokens, 5, max_targets=max_targets)  # type: ignore[arg-type]
    batches = ValBatches(tokens, layout, 2)  # type: ignore[arg-type]
    assert layout.n_targets == min(max_targets, 26)
    expected = tokens.ids[1 : 1 + max_targets].tolist()
    found = counted(*(batches[k] for k in range(len(batches))))
    assert sorted(found) == sorted(expected)
    with pytest.raises(IndexError):
        batches[len(batches)]


@every_layout
def test_weights_make_the_mean_over_a_step_of_the_means_over_its_batches(name: str):
    batches = train_batches(name, (5, 1, 1, 9, 2, 7, 3), 6, 2, accumulate=3)
    for step in range(4):
        group = [batches[k] for k in range(3 * step, 3 * step + 3)]
        of_means = sum(b.weight * np.mean(counted(b)) for b in group) / 3
        assert of_means == pytest.approx(np.mean(counted(*group)))
        assert sum(b.weight for b in group) == pytest.approx(3)


def test_windows_begin_anywhere_on_the_ring():
    tokens = stream(9)
    segments = Windows(tokens, 4).segments(np.array([0, 2]), phase=7)  # type: ignore[arg-type]
    assert (segments.begin.tolist(), segments.length.tolist()) == ([7, 15], [4, 2])
