"""Make tokens that were drawn before less likely, however often they were."""

from collections.abc import Sequence

import torch
from torch import Tensor


def presence_penalty(logits: Tensor, new: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Subtract the penalty from the logits (B, V) of the tokens that were drawn.

    Args:
        logits: (B, V).
        new: each row's tokens so far, its prompt left out.
        penalty: 0 changes nothing; below 0 such tokens become likelier.
    """
    logits = logits.clone()
    for row, ids in zip(logits, new, strict=True):
        row[torch.tensor(sorted(set(ids)), dtype=torch.int64, device=row.device)] -= penalty
    return logits
