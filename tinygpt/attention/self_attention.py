"""Multi-head self-attention: the projections around a kernel."""

from typing import Protocol

from torch import Tensor, nn

from tinygpt.attention.kernel import Kernel
from tinygpt.attention.masks import Mask


class LayerCache(Protocol):
    """One layer's cache, as attention sees it."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values (B, H, T, D); return all that are stored, (B, H, S, D) each."""
        ...


class SelfAttention(nn.Module):
    """Each token gathers from the tokens that the mask lets it see.

    Args:
        n_embd: width C of the input and the output.
        n_head: number of heads H; the head size D is C / H.
        kernel: the implementation of softmax(q·kᵀ/√D)·v.
        bias: whether the projections have biases.
        dropout: share of attention weights, and of outputs, dropped in training.

    Raises:
        ValueError: n_head does not divide n_embd.

    Source: Vaswani et al., 2017, section 3.2.
    """

    def __init__(self, n_embd: int, n_head: int, *, kernel: Kernel, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, got n_embd={n_embd}, n_head={n_head}")
        self.n_head = n_head
        self.kernel = kernel
        self.dropout = dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)  # the three projections side by side: one matrix product
        self.proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Mask, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, C) → (B, T, C); with a cache, the T tokens also attend to those that it holds."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H, S, D)
        y = self.kernel(q, k, v, mask, self.dropout if self.training else 0.0)  # (B, H, T, D)
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.residual_dropout(self.proj(y))
