"""Draw from the likeliest tokens that together reach a probability."""

import torch
from torch import Tensor

ROUNDING = 1e-6  # probabilities that sum to p on paper reach it


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The most probable tokens whose probabilities together reach p, -inf elsewhere; (B, V) → (B, V).

    The token that crosses p stays, so one always does.

    Source: Holtzman et al., 2020, section 3.1.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    together = ordered.softmax(dim=-1).cumsum(dim=-1)
    reached = together[:, :-1] >= p - ROUNDING  # by a token, so that those after it go
    beyond = torch.cat([torch.zeros_like(reached[:, :1]), reached], dim=-1)
    return torch.empty_like(logits).scatter(-1, order, ordered.masked_fill(beyond, -torch.inf))
