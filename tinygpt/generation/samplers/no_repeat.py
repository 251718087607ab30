"""Say nothing twice that is n tokens long."""

from collections.abc import Sequence

import torch
from torch import Tensor


def no_repeat_ngram(logits: Tensor, seen: Sequence[Sequence[int]], n: int) -> Tensor:
    """-inf for each token that would end a run of n tokens that there was already, unless every token would.

    Args:
        logits: (B, V).
        seen: each row's tokens so far, its prompt included.
        n: at least 1.

    Source: Paulus et al., 2017, section 2.5.
    """
    logits = logits.clone()
    for row, ids in zip(logits, seen, strict=True):
        last = list(ids[len(ids) - n + 1 :])
        banned = [ids[i + n - 1] for i in range(len(ids) - n + 1) if list(ids[i : i + n - 1]) == last]
        barred = row.index_fill(0, torch.tensor(banned, dtype=torch.int64, device=row.device), -torch.inf)
        if (barred > -torch.inf).any():
            row.copy_(barred)
    return logits
