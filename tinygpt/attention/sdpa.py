"""PyTorch's fused kernels, by the fastest path that the mask allows."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tinygpt.attention.kernel import Kernel, check_shapes, shared
from tinygpt.attention.masks import Mask


@dataclass(frozen=True)
class SDPA(Kernel):
    """`torch.nn.functional.scaled_dot_product_attention`.

    `is_causal` and `attn_mask` exclude each other, and `is_causal` aligns the triangle top-left: with keys cached in
    front of the queries it would hide them. So the flag is passed only where it alone says what the mask says.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        T, S = q.shape[2], k.shape[2]
        matrix, empty, flag = None, None, False
        if mask.padding is None and mask.documents is None and (mask.window is None or mask.window >= S):
            if mask.causal and T > 1:  # one query, the newest token, sees every key
                flag = mask.start == 0
                matrix = None if flag else mask.drawn(T, S, q.device)[0]
        else:
            matrix, empty = mask.drawn(T, S, q.device)
        out = fused(q, mask.silence(k), mask.silence(v), matrix, dropout, is_causal=flag)
        return out if empty is None else out.masked_fill(empty, 0.0)


def fused(q: Tensor, k: Tensor, v: Tensor, matrix: Tensor | None, dropout: float, is_causal: bool = False) -> Tensor:
    """PyTorch's call, heads of q that share one of k and v included.

    On a CPU its own way of sharing is the fastest exact one: with keys and values repeated by hand training takes up to
    a third longer (forward and backward), and decoding up to three times as long. On a GPU no fused kernel has both
    such heads and a matrix.
    """
    if matrix is not None and q.device.type != "cpu":
        k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=matrix, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped
    )
