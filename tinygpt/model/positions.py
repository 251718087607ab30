"""Where a token stands."""

import torch
from torch import Tensor


def count(padding: Tensor | None, documents: Tensor | None) -> Tensor:
    """Each token's position: how many real tokens of its document come before it.

    So a document starts at 0 wherever it lies in a row, and is the same text as alone in one.

    Args:
        padding: (B, S) bool, True on real tokens; None when all are.
        documents: (B, S) int64, the document of each token, in any order; None when each row is one. One of the two
            is given.

    Returns:
        (B, S) int64. In padded places they mean nothing.
    """
    if documents is None:
        assert padding is not None
        return padding.cumsum(dim=1) - padding.long()
    documents, order = documents.sort(dim=1, stable=True)  # each document in one piece, its tokens in their order
    real = torch.ones_like(documents) if padding is None else padding.gather(1, order).long()
    before = real.cumsum(dim=1) - real  # real tokens, of this document and those in front of it
    first = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
    in_front = before.where(first, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter(1, order, before - in_front)
