"""PyTorch's fused kernels, by the fastest path that the mask allows."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tinygpt.attention.kernel import check_shapes
from tinygpt.attention.masks import Mask


@dataclass(frozen=True)
class SDPA:
    """`torch.nn.functional.scaled_dot_product_attention`; see `Kernel` for the call.

    `is_causal` and `attn_mask` exclude each other, and `is_causal` aligns the triangle top-left: with keys cached in
    front of the queries it would hide them. So the flag is passed only where it alone says what the mask says.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        T, S = q.shape[2], k.shape[2]
        if mask.padding is None:
            if not mask.causal or T == 1:  # one query, the newest token: it sees every key
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
            if mask.start == 0:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense(T, S, q.device), dropout_p=dropout)
        # A weight of zero does not silence a NaN (0 · NaN is NaN), so what is padded is zeroed as well as masked.
        padded = ~mask.padding[:, None, :, None]
        k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
        # A softmax over nothing is NaN: such a query is given all keys, and its output and gradient are cut to zero.
        allowed = mask.dense(T, S, q.device)
        empty = ~allowed.any(dim=-1, keepdim=True)  # (B, 1, T, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | empty, dropout_p=dropout)
        return out.masked_fill(empty, 0.0)
