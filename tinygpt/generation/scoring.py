"""How well a model foretells a text."""

from math import exp, log
from typing import NamedTuple

import torch

from tinygpt.model.gpt import GPT
from tinygpt.model.loss import NOT_COUNTED, next_token_loss

TOKENS = 2**14  # that are scored at once, at the most, but for one window


class Score(NamedTuple):
    """What a text cost.

    Attributes:
        loss: the mean of nats a token.
        perplexity: its exponential.
        bits_per_byte: all nats over ln 2 and over the text's bytes; None for a text without any.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None


@torch.inference_mode()
def score(model: GPT, ids: list[int], n_bytes: int, stride: int | None = None) -> Score:
    """Every id but the first is foretold once, from those in front of it in its window.

    Args:
        model: in evaluation mode.
        ids: at least two; the first is only looked at.
        n_bytes: of the text that the others are.
        stride: None: windows of block_size lie end to end, as in validation, and the first token of each has nothing
            but the one before it to go by. A number, at least 1 and at most block_size: each window begins so many
            tokens after the one before, and what was not yet foretold is, so that all but the first window's tokens
            have at least block_size - stride others to go by.
    """
    size = model.block_size
    stride = size if stride is None else stride
    if not 1 <= stride <= size:
        raise ValueError(f"stride must be 1 to block_size={size}, got {stride}")
    n = len(ids) - 1
    stream = torch.tensor(ids, device=model.token_embedding.weight.device)
    begins = [0] if n <= size else [*range(0, n - size, stride), n - size] if stride < size else [*range(0, n, size)]
    nats, told = 0.0, 0
    rows = max(1, TOKENS // size)
    for i in range(0, len(begins), rows):
        group = begins[i : i + rows]
        while group:
            width = min(size, n - group[0])
            alike = [begin for begin in group if min(size, n - begin) == width]
            group = group[len(alike) :]
            windows = torch.stack([stream[begin : begin + width + 1] for begin in alike])
            targets = windows[:, 1:].clone()
            for row, begin in zip(targets, alike, strict=True):
                row[: told - begin] = NOT_COUNTED  # told already
                told = begin + width
            nats += next_token_loss(model(windows[:, :-1]), targets, reduction="sum").item()
    loss = nats / n
    return Score(loss, exp(loss), nats / log(2) / n_bytes if n_bytes else None)
