"""Make what was said before less likely, in the prompt too."""

from collections.abc import Sequence

import torch
from torch import Tensor


def repetition_penalty(logits: Tensor, seen: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Divide the positive logits of tokens that occurred, and multiply the negative ones; once, however often it was.

    Args:
        logits: (B, V).
        seen: each row's tokens so far, its prompt included.
        penalty: above 0; 1 changes nothing.

    Source: Keskar et al., 2019, section 4.1; for negative logits, which a division would make likelier, its successors.
    """
    logits = logits.clone()
    for row, ids in zip(logits, seen, strict=True):
        index = torch.tensor(sorted(set(ids)), dtype=torch.int64, device=logits.device)
        said = row[index]
        row[index] = torch.where(said < 0, said * penalty, said / penalty)
    return logits
