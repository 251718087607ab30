"""Multi-head self-attention: the projections around a kernel."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.attention.kernel import Kernel
from tinygpt.attention.masks import Mask
from tinygpt.attention.rotary import Rotation, rotate
from tinygpt.linear import Linear


class LayerCache(Protocol):
    """One layer's cache, as attention sees it."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values (B, H_kv, T, D); return all that the mask is of, (B, H_kv, S, D) each."""
        ...


def head_size(n_embd: int, n_head: int) -> int:
    """D, where the heads share the width among them.

    Raises:
        ValueError: n_head does not divide n_embd.
    """
    if n_embd % n_head:
        raise ValueError(f"n_embd must be a multiple of n_head, got n_embd={n_embd}, n_head={n_head}")
    return n_embd // n_head


class SelfAttention(nn.Module):
    """Each token gathers from the tokens that the mask lets it see.

    Args:
        n_embd: width C of the input and the output.
        n_head: number of heads H.
        n_kv_head: number of heads H_kv of k and v; each H / H_kv heads of q share one. None: n_head.
        head_dim: head size D. None: C / H.
        kernel: the implementation of softmax(q·kᵀ/√D)·v.
        bias: whether the projections have biases.
        q_norm: applied to each head of q, over D.
        k_norm: applied to each head of k, over D.
        attention_dropout: share of the attention weights dropped in training.
        dropout: share of the outputs dropped in training.

    Raises:
        ValueError: n_head does not divide n_embd and there is no head_dim, or n_kv_head does not divide n_head.

    Source: Vaswani et al., 2017, section 3.2; Ainslie et al., 2023, for the heads that share; Henry et al., 2020, for
    the norms.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        kernel: Kernel,
        n_kv_head: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.n_kv_head = n_head if n_kv_head is None else n_kv_head
        self.head_dim = head_size(n_embd, n_head) if head_dim is None else head_dim
        if n_head % self.n_kv_head:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got n_head={n_head}, n_kv_head={n_kv_head}")
        self.kernel = kernel
        self.attention_dropout = attention_dropout
        self.dropout = dropout
        # The three projections side by side: one matrix product.
        self.qkv = Linear(n_embd, (n_head + 2 * self.n_kv_head) * self.head_dim, bias=bias)
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.proj = Linear(n_head * self.head_dim, n_embd, bias=bias)

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """x (B, T, C) → (B, T, C); with a cache, the T tokens also attend to those that it holds."""
        B, T, _ = x.shape
        qkv = self.qkv(x).view(B, T, -1, self.head_dim)  # (B, T, H + 2 · H_kv, D)
        q, k, v = qkv.split([self.n_head, self.n_kv_head, self.n_kv_head], dim=2)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        # Norms and rotations compute in fp32; the kernel and the cache work in the dtype of the projections.
        if q.dtype != v.dtype:
            q, k = q.to(v.dtype), k.to(v.dtype)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H_kv, S, D)
        y = self.kernel(q, k, v, mask, self.attention_dropout if self.training else 0.0)  # (B, H, T, D)
        y = self.proj(y.transpose(1, 2).flatten(2))
        return F.dropout(y, self.dropout) if self.training else y
