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
        matrix, empty, flag = None, None, False
        if mask.padding is None and mask.documents is None:
            if mask.causal and T > 1:  # one query, the newest token, sees every key
                flag = mask.start == 0
                matrix = None if flag else mask.drawn(T, S, q.device)[0]
        else:
            matrix, empty = mask.drawn(T, S, q.device)
        if mask.padding is not None:
            # A weight of zero does not silence a NaN (0 · NaN is NaN), so what is padded is zeroed as well as masked.
            padded = ~mask.padding[:, None, :, None]
            k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
        # Heads that share keys: on a CPU this is the fastest exact way. With keys and values repeated by hand training
        # takes up to a third longer (forward and backward), and decoding up to three times as long.
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=matrix, dropout_p=dropout, is_causal=flag, enable_gqa=grouped
        )
        return out if empty is None else out.masked_fill(empty, 0.0)
