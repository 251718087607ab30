import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinygpt.attention import Mask
from tinygpt.attention.masks import random_blocks


def test_a_causal_query_sees_itself_and_what_is_before_it():
    expected = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    assert torch.equal(Mask().dense(3, 3, torch.device("cpu"))[0, 0], expected)


def test_queries_behind_a_cache_see_all_of_it():
    expected = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    assert torch.equal(Mask(start=2).dense(2, 4, torch.device("cpu"))[0, 0], expected)


def test_padding_hides_its_keys_from_every_query_of_its_row_alone():
    padding = torch.tensor([[0, 1, 1], [1, 1, 1]]).bool()
    mask = Mask(padding=padding).dense(3, 3, torch.device("cpu"))
    assert mask.shape == (2, 1, 3, 3)
    assert torch.equal(mask[0, 0], torch.tensor([[0, 0, 0], [0, 1, 0], [0, 1, 1]]).bool())
    assert torch.equal(mask[1, 0], torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool())


def test_without_causality_every_query_sees_every_real_key():
    mask = Mask(causal=False, padding=torch.tensor([[1, 0]]).bool()).dense(3, 2, torch.device("cpu"))
    assert torch.equal(mask[0, 0], torch.tensor([[1, 0]] * 3).bool())


def test_a_query_sees_its_own_document_alone():
    mask = Mask(documents=torch.tensor([[4, 4, 9]])).dense(3, 3, torch.device("cpu"))
    assert torch.equal(mask[0, 0], torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]]).bool())


def test_queries_are_the_last_places_of_the_documents():
    mask = Mask(documents=torch.tensor([[4, 4, 9, 4]]), start=2).dense(2, 4, torch.device("cpu"))
    assert torch.equal(mask[0, 0], torch.tensor([[0, 0, 1, 0], [1, 1, 0, 1]]).bool())


def test_documents_padding_and_causality_are_joined_by_and():
    documents, padding = torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]]).bool()
    mask = Mask(padding=padding, documents=documents).dense(4, 4, torch.device("cpu"))
    expected = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]).bool()
    assert torch.equal(mask[0, 0], expected)


@st.composite
def masks(draw: st.DrawFn) -> tuple[Mask, int, int, int]:
    """A mask, B, T and S."""
    B, T, start = draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.integers(0, 4))
    S = start + T
    flags = st.lists(st.lists(st.booleans(), min_size=S, max_size=S), min_size=B, max_size=B)
    return (
        Mask(
            causal=draw(st.booleans()),
            padding=draw(st.none() | flags.map(torch.tensor)),
            documents=draw(st.none() | flags.map(lambda rows: torch.tensor(rows).cumsum(1))),
            start=start,
            window=draw(st.none() | st.integers(1, 5)),
            n_global=draw(st.integers(0, 3)),
            random=draw(st.none() | st.just(random_blocks(S, 1, seed=3))),
            random_block=draw(st.integers(1, 2)),
        ),
        B,
        T,
        S,
    )


@given(drawn=masks())
def test_a_mask_is_what_its_words_say_place_by_place(drawn: tuple[Mask, int, int, int]):
    mask, B, T, S = drawn
    dense = mask.dense(T, S, torch.device("cpu")).expand(B, 1, T, S)
    for b in range(B):
        real = [True] * S if mask.padding is None else mask.padding[b].tolist()
        document = [0] * S if mask.documents is None else mask.documents[b].tolist()
        position = [sum(real[j] and document[j] == document[i] for j in range(i)) for i in range(S)]
        for t in range(T):
            q = mask.start + t
            for k in range(S):
                near = mask.window is None or abs(q - k) < mask.window or position[k] < mask.n_global
                if mask.random is not None:
                    near |= bool(mask.random[position[q] // mask.random_block, position[k] // mask.random_block])
                allowed = near and real[k] and document[q] == document[k] and (k <= q or not mask.causal)
                assert dense[b, 0, t, k] == allowed


def test_random_blocks_lie_in_front_and_a_longer_table_begins_with_a_shorter_one():
    table = random_blocks(20, 3, seed=5)
    assert table.sum(1).tolist() == [0, 1, 2, *[3] * 17]
    assert not table.triu().any()
    assert torch.equal(random_blocks(8, 3, seed=5), table[:8, :8])
    assert not torch.equal(random_blocks(20, 3, seed=6), table)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"n_global": -1}, "n_global must be at least 0, got -1"),
        ({"random_block": 0}, "random_block must be at least 1, got 0"),
    ],
)
def test_a_mask_of_impossible_sizes_is_refused(sizes: dict[str, int], words: str):
    with pytest.raises(ValueError, match=words):
        Mask(**sizes)


def test_what_a_softmax_needs_is_drawn_once():
    mask = Mask(padding=torch.tensor([[0, 1]]).bool())
    allowed, empty = mask.drawn(2, 2, torch.device("cpu"))
    assert torch.equal(allowed[0, 0], torch.tensor([[1, 1], [0, 1]]).bool())  # the first query sees nothing
    assert empty is not None
    assert empty[0, 0, :, 0].tolist() == [True, False]
    assert mask.drawn(2, 2, torch.device("cpu"))[0] is allowed
    assert mask.drawn(1, 2, torch.device("cpu"))[0].shape == (1, 1, 1, 2)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Mask(start=1), r"a causal mask needs S = start \+ T keys, got S=3 keys for T=3 queries that start at 1"),
        (Mask(padding=torch.ones(2, 3)), "padding must be boolean, True on real tokens, got torch.float32"),
        (Mask(padding=torch.ones(3).bool()), r"padding must be \(B, S\) = \(2, 3\), got \(3,\)"),
        (
            Mask(causal=False, documents=torch.zeros(2, 3, dtype=torch.int64), start=1),
            r"a document mask needs S = start \+ T keys, got S=3 keys for T=3 queries that start at 1",
        ),
        (Mask(documents=torch.ones(2, 3)), "documents must be int64, a number for each document, got torch.float32"),
        (Mask(documents=torch.ones(1, 3).long()), r"documents must be \(B, S\) = \(2, 3\), got \(1, 3\)"),
        (
            Mask(causal=False, window=2, start=1),
            r"a window mask needs S = start \+ T keys, got S=3 keys for T=3 queries",
        ),
        (
            Mask(window=2, random=torch.ones(1, 1).bool(), random_block=2),
            r"random must hold 2 blocks of 2 for S=3 keys, got \(1, 1\)",
        ),
        (Mask(padding=torch.ones(1, 2, 3).bool()), r"padding must be \(B, S\) = \(2, 3\), got \(1, 2, 3\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_sizes(mask: Mask, words: str):
    q = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match=words):
        mask.check(q, q)
