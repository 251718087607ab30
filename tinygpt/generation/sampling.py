"""From the logits of the next token to the next token."""

import torch
from torch import Tensor

ROUNDING = 1e-6  # probabilities that sum to p on paper reach it


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest logits of each row, -inf elsewhere; (B, V) → (B, V). Exactly k stay, ties or not; k > V keeps all.

    Source: Fan et al., 2018, section 5.4.
    """
    kept = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return torch.full_like(logits, -torch.inf).scatter(-1, kept, logits.gather(-1, kept))


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


def next_token(
    logits: Tensor, uniform: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> Tensor:
    """Draw one token a row: temperature, then top-k, then top-p, then the draw.

    Args:
        logits: (B, V), the model's.
        uniform: (B,) float64 in [0, 1), one random number a row: the draw inverts the cumulative distribution, so a
            row's token depends on its own logits and number alone.
        temperature: divides the logits; 0 takes the largest, without chance.
        top_k: keep the k most probable tokens; None keeps all.
        top_p: keep the most probable tokens that together reach p; 1 keeps all.

    Returns:
        (B,) int64, on the CPU, where the draw is the same for every device.

    Raises:
        ValueError: a logit is NaN or infinite.
    """
    if not torch.isfinite(logits).all():
        raise ValueError("the model's logits are not finite: its weights are damaged or have diverged")
    if temperature == 0:
        return logits.argmax(dim=-1).cpu()
    logits = logits.cpu().double()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature  # the largest is 0: nothing overflows
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p < 1:
        logits = keep_top_p(logits, top_p)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    drawn = uniform[:, None] * cumulative[:, -1:]
    # The first token whose cumulative probability exceeds the number: never one of probability 0.
    return torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
