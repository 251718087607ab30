"""Draw from the tokens that are not much less likely than the likeliest."""

from math import log

import torch
from torch import Tensor


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """The tokens whose probability is at least p times the largest, -inf elsewhere; (B, V) → (B, V).

    Args:
        logits: (B, V).
        p: above 0 and at most 1; the likeliest always stays.

    Source: Nguyen et al., 2024, section 3.
    """
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + log(p), -torch.inf)
