"""The decoding loop: prefill once, then one token at a time."""

import numpy as np
import torch
from torch import Tensor

from tinygpt.generation.cache import KVCache
from tinygpt.generation.sampling import next_token
from tinygpt.model.gpt import GPT


@torch.inference_mode()
def generate(
    model: GPT,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    end_of_text: int,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    use_cache: bool = True,
) -> list[list[int]]:
    """Continue a prompt, several times over.

    The model sees the last block_size tokens. Up to there the keys and values of earlier tokens are cached; past it
    every position moves with each token, a cache would hold the keys of other positions, and the window is computed
    anew, with or without a cache.

    Args:
        model: in evaluation mode.
        prompt: (T,) int64 ids, at least one.
        max_new_tokens: how many tokens to add at most.
        end_of_text: the id that ends a sample; it is not part of what is returned.
        num_samples: how many continuations.
        temperature: at least 0; this and the next two: see `next_token`.
        top_k: at least 1.
        top_p: above 0 and at most 1.
        seed: with a sample's number, all that its draws depend on: neither how many samples there are nor where the
            model runs changes them.
        use_cache: keep keys and values; without, the whole window is computed for every token, to the same result.

    Returns:
        num_samples lists of new ids.

    Raises:
        ValueError: an argument is out of its range, or the model's logits are not finite.
    """
    for name, value in (("num_samples", num_samples), ("max_new_tokens", max_new_tokens), ("top_k", top_k)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    device = model.token_embedding.weight.device
    uniform = torch.from_numpy(
        np.stack([np.random.default_rng([seed, i]).random(max_new_tokens) for i in range(num_samples)])
    )  # (B, max_new_tokens)
    ids = torch.empty(num_samples, len(prompt) + max_new_tokens, dtype=torch.int64, device=device)
    ids[:, : len(prompt)] = prompt
    ended = torch.zeros(num_samples, dtype=torch.bool, device=device)
    cache = KVCache(model) if use_cache else None
    end = len(prompt)
    for step in range(max_new_tokens):
        if cache is not None and end <= model.block_size:
            logits = model(ids[:, cache.length : end], cache=cache, last_only=True)[:, -1]  # (B, V)
        else:
            logits = model(ids[:, max(0, end - model.block_size) : end], last_only=True)[:, -1]
        ids[:, end] = next_token(logits, uniform[:, step], temperature=temperature, top_k=top_k, top_p=top_p)
        ended |= ids[:, end] == end_of_text
        end += 1
        if ended.all():
            break
    rows = ids[:, len(prompt) : end].tolist()
    return [row[: row.index(end_of_text)] if end_of_text in row else row for row in rows]
