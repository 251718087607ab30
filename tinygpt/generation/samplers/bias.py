"""Make chosen tokens likelier or less likely."""

from collections.abc import Mapping

from torch import Tensor


def logit_bias(logits: Tensor, bias: Mapping[int, float]) -> Tensor:
    """Add to the logits (B, V) of tokens, by their ids; -inf forbids one.

    Raises:
        ValueError: an id is none of the vocabulary, or no token is left, also for what was barred before.
    """
    logits = logits.clone()
    for token, value in bias.items():
        if not 0 <= token < logits.shape[-1]:
            raise ValueError(f"logit_bias names the id {token}; ids are 0 to {logits.shape[-1] - 1}")
        logits[:, token] += value
    if not (logits > -float("inf")).any(dim=-1).all():
        raise ValueError("no token is left: logit_bias forbids all, or all but those that no_repeat_ngram does")
    return logits
