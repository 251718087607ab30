"""PyTorch's flex attention: the mask compiled into the kernel, blocks that nothing sees left out; for GPUs."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tinygpt.attention.kernel import Kernel, check_shapes
from tinygpt.attention.masks import Mask
from tinygpt.attention.sdpa import SDPA


@dataclass(frozen=True)
class Flex(Kernel):
    """`torch.nn.attention.flex_attention`. It trains on a GPU alone, and without dropout of attention weights.

    On a CPU it computes the forward pass alone, unfused. Behind a cache, and for one query, this is `SDPA`, for every
    length would be another kernel to compile.

    Source: Dong et al., 2024.
    """

    def check(self, *, device: str, dropout: float, random: bool, head_dim: int) -> None:  # noqa: ARG002 - has blocks
        if device != "cuda":
            raise ValueError(f"flex trains on a GPU alone (cuda), got {device}; take another attention, such as sdpa")
        if dropout:
            raise ValueError(f"flex has no dropout; set model.dropout=0.0, or take another attention, got {dropout}")
        if head_dim < 16:
            raise ValueError(f"flex needs heads of 16 channels or more, got {head_dim}; take fewer heads")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        T, S = q.shape[2], k.shape[2]
        if dropout or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
            self.check(device=q.device.type, dropout=dropout, random=mask.random is not None, head_dim=q.shape[3])
        if mask.start or T == 1:
            return SDPA()(q, k, v, mask)
        k, v = mask.silence(k), mask.silence(v)
        blocks = mask.once(("flex", T, S, q.device), lambda: _block_mask(mask, T, S, q.device))
        grouped = q.shape[1] != k.shape[1]
        if q.device.type == "cuda":
            return _compiled(flex_attention)(q, k, v, block_mask=blocks, enable_gqa=grouped)
        with warnings.catch_warnings():  # that it is not compiled
            warnings.simplefilter("ignore")
            return flex_attention(q.detach(), k.detach(), v.detach(), block_mask=blocks, enable_gqa=grouped)


def _block_mask(mask: Mask, T: int, S: int, device: torch.device) -> BlockMask:
    _ = mask.positions  # counted here: within the predicate, which is compiled, a sort has no place
    # Compiled, it never holds the whole matrix either.
    create = _compiled(create_block_mask) if device.type == "cuda" else create_block_mask
    return create(
        lambda b, h, q, k: mask.sees(b, q, k),  # noqa: ARG005 - all heads see the same
        B=None if mask.n_rows == 1 else mask.n_rows,
        H=None,
        Q_LEN=T,
        KV_LEN=S,
        device=device,
    )


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function)
