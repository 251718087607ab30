"""PyTorch's flex attention: the mask compiled into the kernel, blocks that nothing sees left out; for GPUs."""

import warnings
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from tinygpt.attention.kernel import Kernel, check_shapes
from tinygpt.attention.masks import Mask


@dataclass(frozen=True)
class Flex(Kernel):
    """`torch.nn.attention.flex_attention`. It trains on a GPU alone, and without dropout of attention weights.

    On a CPU it computes the forward pass, unfused: to sample there from what a GPU has trained.

    Source: Dong et al., 2024.
    """

    def check(self, *, device: str, dropout: float, random: bool) -> None:  # noqa: ARG002 - can do the others
        if device != "cuda":
            raise ValueError(f"flex trains on a GPU alone (cuda), got {device}; take another attention, such as sdpa")
        if dropout:
            raise ValueError(f"flex has no dropout; set model.dropout=0.0, or take another attention, got {dropout}")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        T, S = q.shape[2], k.shape[2]
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            self.check(device=q.device.type, dropout=dropout, random=mask.random is not None)
        k, v = mask.silence(k), mask.silence(v)
        blocks = mask.once(("flex", T, S, q.device), lambda: _block_mask(mask, T, S, q.device))
        grouped = q.shape[1] != k.shape[1]
        if q.device.type == "cuda":
            return _compiled()(q, k, v, block_mask=blocks, enable_gqa=grouped)
        with warnings.catch_warnings():  # that it is not compiled
            warnings.simplefilter("ignore")
            return flex_attention(q.detach(), k.detach(), v.detach(), block_mask=blocks, enable_gqa=grouped)


def _block_mask(mask: Mask, T: int, S: int, device: torch.device) -> BlockMask:
    given = mask.padding if mask.padding is not None else mask.documents
    return create_block_mask(
        lambda b, h, q, k: mask.sees(b, q + mask.start, k),  # noqa: ARG005 - all heads see the same
        B=None if given is None else given.shape[0],
        H=None,
        Q_LEN=T,
        KV_LEN=S,
        device=device.type,
    )


@cache
def _compiled():
    return torch.compile(flex_attention, dynamic=False)
