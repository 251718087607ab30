"""What is looked up by ids: against slow versions of itself, and with known answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import small
from tinygpt.model import Modern, lookups
from tinygpt.model.lookups import NOTHING, History, MatchEmbedding, NgramEmbedding, longest_match


def whole(ids: Tensor, documents: Tensor | None = None) -> History:
    return History(ids, torch.arange(ids.shape[1]).expand_as(ids), documents)


def test_each_token_comes_with_those_before_it_in_its_document():
    ids = torch.tensor([[5, 6, 7, 8]])
    assert whole(ids).before(3).tolist() == [[[5, -1, -1], [6, 5, -1], [7, 6, 5], [8, 7, 6]]]
    documents = torch.tensor([[0, 0, 1, 1]])
    assert whole(ids, documents).before(3).tolist() == [[[5, -1, -1], [6, 5, -1], [7, -1, -1], [8, 7, -1]]]
    assert History(ids, torch.tensor([[3]])).before(2).tolist() == [[[8, 7]]]


def slow(ids: list[int], documents: list[int], place: int, longest: int) -> tuple[int, int]:
    """The same, as it is said."""
    best = (0, 0)
    for earlier in range(place):
        if ids[earlier + 1] == NOTHING or documents[place] != documents[earlier + 1]:
            continue
        n = 0
        while (
            n < min(longest, earlier + 1)
            and ids[earlier - n] == ids[place - n] != NOTHING
            and documents[earlier - n] == documents[place - n] == documents[place]
        ):
            n += 1
        if n >= max(1, best[0]):
            best = (n, ids[earlier + 1])
    return best


@given(
    ids=st.lists(st.integers(0, 2), min_size=2, max_size=14),
    pad=st.integers(0, 3),
    cut=st.integers(0, 14),
    longest=st.integers(1, 4),
    strip=st.integers(1, 5),
)
def test_the_longest_match_is_that_of_a_slow_search(ids: list[int], pad: int, cut: int, longest: int, strip: int):
    for padded in ([NOTHING] * pad + ids, ids + [NOTHING] * pad):
        documents = [0 if i < cut else 1 for i in range(len(padded))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookups, "STRIP", strip)
            found = longest_match(whole(torch.tensor([padded]), torch.tensor([documents])), longest)
        pairs = list(zip(*(values[0].tolist() for values in found), strict=True))
        expected = [slow(padded, documents, place, longest) for place in range(len(padded))]
        real = [i for i, id_ in enumerate(padded) if id_ != NOTHING]
        assert [pairs[i] for i in real] == [expected[i] for i in real]


def test_a_match_names_what_followed_the_latest_of_the_longest():
    ids = torch.tensor([[1, 2, 3, 1, 2, 4, 9, 2, 5, 1, 2]])
    length, following = longest_match(whole(ids), 8)
    assert (length[0, 10].item(), following[0, 10].item()) == (2, 4)
    assert (length[0, 7].item(), following[0, 7].item()) == (1, 4)
    assert (length[0, 2].item(), following[0, 2].item()) == (0, 0)
    length, following = longest_match(whole(ids), 1)
    assert (length[0, 10].item(), following[0, 10].item()) == (1, 5)


def test_the_last_token_of_a_cache_matches_as_in_the_whole_row():
    ids = torch.randint(0, 3, (4, 20))
    length, following = longest_match(whole(ids), 3)
    for place in (0, 7, 19):
        some = longest_match(History(ids, torch.full((4, 1), place)), 3)
        assert torch.equal(some[0][:, 0], length[:, place])
        assert torch.equal(some[1][:, 0], following[:, place])


def test_equal_ngrams_have_equal_vectors_and_others_their_own():
    embedding = NgramEmbedding(8, [64, 512], 4)
    a, b = whole(torch.tensor([[1, 2, 3, 1, 2, 3, 2, 3]])), whole(torch.tensor([[4, 2, 3]]))
    found = embedding(a)
    torch.testing.assert_close(found[0, 2], found[0, 5])
    assert not torch.allclose(found[0, 2], found[0, 7])  # 2, 3 behind a 3
    assert not torch.allclose(found[0, 2], embedding(b)[0, 2])


def test_a_fresh_model_looks_up_nothing():
    fresh = Modern(vocab_size=11, n_layer=1, n_head=2, n_embd=16, ngram_rows=[32], match=3)
    assert len(fresh.lookups) == 2
    for lookup in fresh.lookups:
        assert not lookup(whole(torch.randint(11, (2, 8)))).any()


def test_a_vector_is_learned_only_by_what_was_looked_up():
    embedding = MatchEmbedding(5, 6, 2)
    embedding(whole(torch.tensor([[1, 2, 1]]))).sum().backward()
    assert embedding.table.weight.grad is not None
    rows = embedding.table.weight.grad.any(dim=1).nonzero()[:, 0].tolist()
    assert rows == [0, 1 * 5 + 2]


def test_dropout_keeps_a_whole_vector_of_a_table_from_a_token_or_none_of_it():
    embedding = NgramEmbedding(4, rows=[8], dim=4, dropout=0.25)
    with torch.no_grad():
        embedding.proj.weight.copy_(torch.eye(4))
        embedding.tables[0].weight.fill_(3.0)
    vectors = embedding.train()(whole(torch.zeros(40, 100, dtype=torch.int64))).flatten(0, 1)
    assert set(vectors.unique().tolist()) == {0.0, 4.0}  # what stays is larger, so that the mean is the same
    assert torch.equal(vectors.amin(dim=1), vectors.amax(dim=1))
    assert (vectors == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert (embedding.eval()(whole(torch.zeros(1, 2, dtype=torch.int64))) == 3).all()


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"match": 128}, "match must lie between 1 and 127, or be 0 for none, got 128"),
        ({"match": -1}, "match must lie between 1 and 127, or be 0 for none, got -1"),
        ({"ngram_rows": [8, 0]}, "ngram_rows and ngram_dim must be at least 1, got"),
        ({"ngram_rows": [8], "ngram_dim": 0}, "ngram_rows and ngram_dim must be at least 1, got"),
        ({"ngram_rows": [8], "ngram_dropout": 1.0}, "ngram_dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_impossible_lookups_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        small("modern", **keywords)
