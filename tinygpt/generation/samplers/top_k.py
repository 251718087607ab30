"""Draw from the k likeliest tokens alone."""

import torch
from torch import Tensor


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits of each row, -inf elsewhere; (B, V) → (B, V). Exactly k stay, ties or not; k > V keeps all.

    Source: Fan et al., 2018, section 5.4.
    """
    kept = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return torch.full_like(logits, -torch.inf).scatter(-1, kept, logits.gather(-1, kept))
