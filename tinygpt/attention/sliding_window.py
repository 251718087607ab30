"""The banded kernel: time and memory linear in T, forward and backward."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinygpt.attention.kernel import Kernel, check_shapes
from tinygpt.attention.masks import Mask
from tinygpt.attention.sdpa import SDPA, fused


@dataclass(frozen=True)
class SlidingWindow(Kernel):
    """Blocks of queries, each against the keys that its windows reach and the global ones, all blocks at once.

    Where the mask has no window, or the keys are no more than one block would look at, this is `SDPA`. With a window,
    each document's tokens lie together, and padding among them has its number.

    Args:
        block: queries in a block; at a window of 256, 64 and 256 are slower on a CPU.

    Source: Beltagy et al., 2020, section 3.1.
    """

    block: int = 128

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block must be at least 1, got {self.block}")

    def check(self, *, device: str, dropout: float, random: bool, head_dim: int) -> None:  # noqa: ARG002 - all sizes
        if random:
            raise ValueError("sliding_window has no random blocks; set model.n_random=0, or take another attention")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_shapes(q, k, v, mask)
        self.check(device=q.device.type, dropout=dropout, random=mask.random is not None, head_dim=q.shape[3])
        if mask.window is not None and not mask.causal:
            raise ValueError("sliding_window is causal; take another attention for a window without causality")
        T, S = q.shape[2], k.shape[2]
        block = min(self.block, T)
        if mask.window is None or mask.window - 1 + block + mask.n_global >= S:
            return SDPA()(q, k, v, mask, dropout)
        n_blocks = -(-T // block)
        allowed, empty, firsts = mask.once(("banded", q.shape, S, block), lambda: _banded(mask, q, S, block))
        # The blocks become rows of the batch: (B · N, H, block, D).
        behind = n_blocks * block - T
        blocks = F.pad(q.transpose(1, 2), (0, 0, 0, 0, 0, behind)) if behind else q.transpose(1, 2)
        blocks = blocks.unflatten(1, (n_blocks, block)).flatten(0, 1)
        k, v = (_spans(mask.silence(x), mask, block, behind, firsts) for x in (k, v))
        out = fused(blocks.transpose(1, 2), k, v, allowed, dropout)
        if empty is not None:
            out = out.masked_fill(empty, 0.0)
        return out.transpose(1, 2).unflatten(0, (-1, n_blocks)).flatten(1, 2)[:, :T].transpose(1, 2)


def _spans(x: Tensor, mask: Mask, block: int, behind: int, firsts: Tensor) -> Tensor:
    """Keys or values (B, H, S, D) → what each block looks at, (B · N, H, G + K, D)."""
    assert mask.window is not None
    x = x.transpose(1, 2)  # (B, S, H, D), as the projections leave it: a copy in this order is the fastest
    first = mask.start - mask.window + 1  # place of the first key that the first query's window reaches
    near = F.pad(x[:, max(first, 0) :], (0, 0, 0, 0, max(-first, 0), behind))
    near = near.unfold(1, mask.window - 1 + block, block).transpose(3, 4)  # (B, N, H, K, D)
    if mask.n_global == 0:
        return near.flatten(0, 1)
    rows = torch.arange(x.shape[0], device=x.device)[:, None, None]
    far = x[rows, firsts].transpose(2, 3)  # (B, N, H, G, D)
    return torch.cat([far, near], dim=3).flatten(0, 1)


def _banded(mask: Mask, q: Tensor, S: int, block: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """What each query of each block may attend to, of the keys that its block looks at.

    Returns:
        allowed: (B · N, 1, block, G + K), and
        empty: (B · N, 1, block, 1) or None, see `Mask.fill_empty`;
        firsts: (1 or B, N, G), the places of the global keys that may lie in front of the span.
    """
    assert mask.window is not None
    (B, _, T, _), device = q.shape, q.device
    rows = torch.arange(B, device=device)[:, None, None, None]
    starts = torch.arange(mask.start, mask.start + T, block, device=device)  # (N,)
    queries = starts[:, None] + torch.arange(block, device=device)  # (N, block)
    span = starts[:, None] + torch.arange(1 - mask.window, block, device=device)  # (N, K)
    firsts = _firsts(mask, queries.clamp(max=S - 1))
    keys = torch.cat([firsts, span.expand(firsts.shape[0], -1, -1)], dim=2)  # (1 or B, N, G + K)
    exists = keys.clamp(0, S - 1) == keys
    exists[..., : mask.n_global] &= firsts < span[:, :1]  # else it is in the span
    # Places behind the last token are those of queries that fill up the last block.
    allowed = mask.sees(rows, queries.clamp(max=S - 1)[:, :, None], keys.clamp(0, S - 1)[:, :, None])
    allowed = (allowed & exists[:, :, None]).expand(B, -1, -1, -1).flatten(0, 1).unsqueeze(1)
    return *mask.fill_empty(allowed), firsts


def _firsts(mask: Mask, queries: Tensor) -> Tensor:
    """The global keys of the document that each block of queries (N, block) begins in, (1 or B, N, G).

    Other documents of the block begin in it, so their first tokens are in the span. Where a document has fewer tokens,
    the places are of others, which the mask hides.
    """
    G = mask.n_global
    if mask.positions is None or G == 0:
        return torch.arange(G, device=queries.device).expand(1, len(queries), G)
    real = torch.ones_like(mask.positions) if mask.padding is None else mask.padding.long()
    is_global = (mask.positions < G) & real.bool()
    places = (~is_global).long().argsort(dim=1, stable=True)  # (B, S), the global ones in front
    first = queries[:, 0].expand(len(places), -1)  # (B, N)
    # How many lie in front of the document: those up to its token, less its own among them.
    own = (mask.positions + real).gather(1, first).clamp(max=G)
    before = is_global.cumsum(dim=1).gather(1, first) - own
    index = before[:, :, None] + torch.arange(G, device=queries.device)
    return places.gather(1, index.clamp(0, places.shape[1] - 1).flatten(1)).view(*first.shape, G)
