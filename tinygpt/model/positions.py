"""Where a token stands, and how a model gets to know it: one class for each kind.

Each is called once in a forward pass, with the embedded tokens (B, T, C) and their positions, (T,) or (B, T), and
returns what the blocks take in: the tokens, and by what attention turns its queries and keys, or None.
"""

import torch
from torch import Tensor, nn

from tinygpt.attention.rotary import Rotation, rotation


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


class LearnedPositions(nn.Module):
    """A vector for each of block_size positions, learned, added to the token's.

    Source: Radford et al., 2018, section 3.1.
    """

    def __init__(self, block_size: int, n_embd: int) -> None:
        super().__init__()
        self.table = nn.Embedding(block_size, n_embd)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Rotation | None]:
        return x + self.table(positions), None


class RotaryPositions(nn.Module):
    """Nothing is added; every attention turns its queries and keys. See `rotation` for the arguments.

    Raises:
        ValueError: head_dim is odd.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, for rotary positions turn pairs, got {head_dim}")
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Rotation | None]:
        return x, rotation(positions, self.head_dim, self.theta)
