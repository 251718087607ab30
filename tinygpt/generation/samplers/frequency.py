"""Make tokens that were drawn before less likely, by how often they were."""

from collections.abc import Sequence

import torch
from torch import Tensor


def frequency_penalty(logits: Tensor, new: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Subtract the penalty from the logits (B, V) of the tokens that were drawn, for each time.

    Args:
        logits: (B, V).
        new: each row's tokens so far, its prompt left out.
        penalty: 0 changes nothing; below 0 such tokens become likelier.
    """
    logits = logits.clone()
    for row, ids in zip(logits, new, strict=True):
        index = torch.tensor(ids, dtype=torch.int64, device=row.device)
        row -= penalty * torch.bincount(index, minlength=len(row)).to(row)
    return logits
