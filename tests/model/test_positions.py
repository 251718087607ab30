import pytest
import torch

from tinygpt.attention.masks import count

REAL = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()


def test_padding_is_not_counted():
    positions = count(REAL, None)
    assert positions[0, 2:].tolist() == [0, 1, 2, 3]
    assert positions[1, :4].tolist() == [0, 1, 2, 3]


def test_each_document_starts_at_0():
    documents = torch.tensor([[7, 7, 7, 2, 2, 5], [0, 1, 1, 1, 1, 1]])
    assert count(None, documents).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]


def test_a_document_may_lie_in_pieces():
    assert count(None, torch.tensor([[3, 1, 3, 1, 1, 3]])).tolist() == [[0, 0, 1, 1, 2, 2]]


@pytest.mark.parametrize("number", [0, 1, 9])
def test_padding_counts_in_no_document_whatever_its_number(number: int):
    documents = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]]).masked_fill(~REAL, number)
    positions = count(REAL, documents)
    assert positions[REAL].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert (positions >= 0).all()
