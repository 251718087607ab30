"""Weights in a byte each, for sampling where memory is short."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.model.gpt import GPT


class Int8Linear(nn.Module):
    """A trained linear layer whose weights are rounded to 8 bits; (..., in) → (..., out).

    Each output has a scale, so that the largest of its weights is 127 times it. Activations and biases stay as they
    are; the weights become numbers of the activations' dtype for the time of the product, which costs time.

    Source: Dettmers et al., 2022, section 2.1, for the scales; weights alone, as there is nothing to gain from the rest
    where a product waits for memory.
    """

    weight: Tensor  # (out, in) int8
    scale: Tensor  # (out,)
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(weight.dtype).tiny)
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.to(x.dtype))
        y = y * self.scale.to(y.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def quantize(model: GPT) -> tuple[int, int]:
    """Round a model's linear layers to 8 bits; a head that is the token embedding stays.

    What is left can sample and score; it can be neither trained nor saved.

    Returns:
        The bytes of all weights before and after.
    """
    before = _bytes(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight is not model.token_embedding.weight:
                setattr(module, name, Int8Linear(child))
    return before, _bytes(model)


def _bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
