"""The keys and values of the tokens so far, so that each new token costs one token's work."""

import torch
from torch import Tensor

from tinygpt.model.gpt import GPT


class LayerCache:
    """One layer's part: (B, H, capacity, D) for keys and for values, filled from the front."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.k = torch.zeros(shape, dtype=dtype, device=device)  # zeros: a NaN left in memory would reach the output
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, D) behind what is stored; return views of all that is, (B, H, S, D)."""
        start, self.length = self.length, self.length + k.shape[2]
        self.k[:, :, start : self.length] = k
        self.v[:, :, start : self.length] = v
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


class KVCache:
    """Room for block_size tokens in all layers, taken once.

    Args:
        model: whose keys and values it will hold.
        batch_size: rows B.
        dtype: that of keys and values: under autocast not the weights'.
    """

    def __init__(self, model: GPT, batch_size: int, dtype: torch.dtype | None = None) -> None:
        shape = (batch_size, model.n_head, model.block_size, model.n_embd // model.n_head)
        weight = model.token_embedding.weight
        self.layers = [LayerCache(shape, dtype or weight.dtype, weight.device) for _ in range(model.n_layer)]

    @property
    def length(self) -> int:
        """Tokens stored so far."""
        return self.layers[0].length
