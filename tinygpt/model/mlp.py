"""The feed-forward half of a block."""

from torch import Tensor, nn


class MLP(nn.Module):
    """Two linear layers around a GELU (tanh form), four times as wide in between; (B, T, C) → (B, T, C).

    Source: Radford et al., 2019; Hendrycks and Gimpel, 2016, for the tanh form.
    """

    def __init__(self, n_embd: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu = nn.GELU(approximate="tanh")
        self.proj = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.residual_dropout(self.proj(self.gelu(self.fc(x))))
