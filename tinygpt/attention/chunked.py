"""Attention in strips of queries: memory linear in T, forward and backward, in plain PyTorch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tinygpt.attention.kernel import Kernel, check_shapes, shared
from tinygpt.attention.manual import attention_weights
from tinygpt.attention.masks import Mask


@dataclass(frozen=True)
class Chunked(Kernel):
    """`Manual`, a strip of queries at a time against the keys that causality leaves it.

    The weights of a strip are thrown away, and computed again when the backward pass comes to them.

    Args:
        strip: queries in a strip.

    Source: Rabe and Staats, 2021, for the idea; Chen et al., 2016, for the recomputation.
    """

    strip: int = 128

    def __post_init__(self) -> None:
        if self.strip < 1:
            raise ValueError(f"strip must be at least 1, got {self.strip}")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        k, v = mask.silence(k), mask.silence(v)

        def attend(q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
            allowed = mask.strip(first, q.shape[2], k.shape[2], q.device)
            weights = F.dropout(attention_weights(q, k, *mask.fill_empty(allowed)), dropout)
            return weights @ shared(v, q.shape[1])

        out = []
        for i, strip in enumerate(q.split(self.strip, dim=2)):
            first = mask.start + i * self.strip
            stop = first + strip.shape[2] if mask.causal else None
            seen = (k[:, :, :stop], v[:, :, :stop])
            out.append(checkpoint(attend, strip, *seen, first, use_reentrant=False, preserve_rng_state=dropout > 0))
        return torch.cat(out, dim=2)
