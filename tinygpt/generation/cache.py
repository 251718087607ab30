"""The keys and values of the tokens so far, so that each new token costs one token's work."""

import torch
from torch import Tensor

from tinygpt.model.gpt import GPT


class LayerCache:
    """One layer's part: (B, H, capacity, D) for keys and for values, filled from the front."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.k = self.v = torch.empty(0)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, D) behind what is stored; return views of all that is, (B, H, S, D)."""
        if self.length == 0:
            # Room for all, in the dtype that keys have (under autocast not the weights'), and zeroed: a NaN left in
            # memory would reach the output.
            B, H, _, D = k.shape
            self.k, self.v = k.new_zeros(B, H, self.capacity, D), v.new_zeros(B, H, self.capacity, D)
        start, self.length = self.length, self.length + k.shape[2]
        self.k[:, :, start : self.length] = k
        self.v[:, :, start : self.length] = v
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


class KVCache:
    """Room for the block_size tokens of a model, in all its layers, taken once."""

    def __init__(self, model: GPT) -> None:
        self.layers = [LayerCache(model.block_size) for _ in range(model.n_layer)]

    @property
    def length(self) -> int:
        """Tokens stored so far."""
        return self.layers[0].length

    def select(self, rows: list[int]) -> None:
        """Keep these rows of the batch, in this order; one may come several times."""
        for layer in self.layers:
            index = torch.tensor(rows, device=layer.k.device)
            layer.k, layer.v = layer.k[index], layer.v[index]
