"""Rotary positions: queries and keys turn with their position, so that a score depends on the distance of the two."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """By what each position turns the pairs of a head's channels; (T, 1, D) or (B, T, 1, D) each, fp32."""

    cos: Tensor
    sin: Tensor  # its first half negated, as the first of a pair needs it


def rotation(positions: Tensor, head_dim: int, theta: float) -> Rotation:
    """The rotation of tokens at the given positions.

    Pair i of a head's D / 2 pairs, the channels i and D / 2 + i, turns by positions · theta^(-2i / D).

    Args:
        positions: (T,) or (B, T) int64.
        head_dim: D, even.
        theta: the base; the slowest pair turns once in almost 2π · theta positions.

    Source: Su et al., 2021, section 3.2; the halves as pairs: GPT-NeoX, Black et al., 2022.
    """
    # In fp32 the angle of the millionth token would be off by 3 hundredths; MPS has nothing longer.
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = torch.arange(0, head_dim, 2, dtype=dtype, device=positions.device) / head_dim
    angles = positions[..., None, None] * (1 / theta**exponents)  # (..., T, 1, D / 2)
    cos, sin = angles.cos().float(), angles.sin().float()
    return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """x (B, T, H, D), turned, in fp32 or x's dtype where that is longer.

    (a, b) · cos + (b, a) · (-sin, sin), where the halves a and b change places by a roll: 0.7 of the time, forward and
    backward on a CPU, of products of the halves that are put together again.
    """
    return torch.addcmul(x * by.cos, x.roll(x.shape[-1] // 2, dims=-1), by.sin)
