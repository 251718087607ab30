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


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (Mask(start=1), r"S = start \+ T keys, got S=3 keys for T=3 queries that start at 1"),
        (Mask(padding=torch.ones(2, 3)), "padding must be boolean, True on real tokens, got torch.float32"),
        (Mask(padding=torch.ones(3).bool()), r"padding must be \(B, S\) = \(2, 3\), got \(3,\)"),
        (Mask(padding=torch.ones(1, 2, 3).bool()), r"padding must be \(B, S\) = \(2, 3\), got \(1, 2, 3\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_both_sizes(mask: Mask, words: str):
    q = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match=words):
        mask.check(q, q)
