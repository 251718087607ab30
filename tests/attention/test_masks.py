import pytest
import torch

from tinygpt.attention import Mask


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
        (Mask(padding=torch.ones(1, 2, 3).bool()), r"padding must be \(B, S\) = \(2, 3\), got \(1, 2, 3\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_sizes(mask: Mask, words: str):
    q = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match=words):
        mask.check(q, q)
