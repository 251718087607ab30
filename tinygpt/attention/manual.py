"""Attention written out: the readable reference, and the one that shows its weights."""

from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from tinygpt.attention.kernel import Kernel, check_shapes, shared
from tinygpt.attention.masks import Mask


@dataclass(frozen=True)
class Manual(Kernel):
    """Scores, mask, softmax, dropout, weights · v, each a line. Holds the whole (T, S) matrix several times."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        weights = F.dropout(self.weights(q, k, mask), dropout)
        return weights @ shared(mask.silence(v), q.shape[1])

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """What each query takes of each key's value: (B, H, T, S), rows of sum 1, or 0 where there is nothing to see.

        The arguments are those of the call.
        """
        check_shapes(q, k, k, mask)
        allowed, empty = mask.drawn(q.shape[2], k.shape[2], q.device)
        return attention_weights(q, mask.silence(k), allowed, empty)


def attention_weights(q: Tensor, k: Tensor, allowed: Tensor, empty: Tensor | None) -> Tensor:
    """softmax(q·kᵀ / √D, where allowed), (B, H, T, S); `allowed` and `empty` as `Mask.fill_empty` returns them."""
    scores = (q / sqrt(q.shape[-1])) @ shared(k, q.shape[1]).transpose(-2, -1)
    if scores.dtype == torch.float16:  # which ends at 65,504; of infinities a softmax makes NaN
        scores = scores.clamp(min=torch.finfo(torch.float16).min, max=torch.finfo(torch.float16).max)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return weights if empty is None else weights.masked_fill(empty, 0.0)
