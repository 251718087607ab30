"""Where a token stands, and how a model gets to know it: one class for each kind.

Each is called once in a forward pass, with the embedded tokens (B, T, C) and their positions, (T,) or (B, T), and
returns what the blocks take in: the tokens, and by what attention turns its queries and keys, or None. `endless` says
whether there are positions beyond block_size.
"""

from torch import Tensor, nn

from tinygpt.attention.rotary import Rotation, rotation


class LearnedPositions(nn.Module):
    """A vector for each of block_size positions, learned, added to the token's.

    Source: Radford et al., 2018, section 3.1.
    """

    endless = False

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

    endless = True

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, for rotary positions turn pairs, got {head_dim}")
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Rotation | None]:
        return x, rotation(positions, self.head_dim, self.theta)
