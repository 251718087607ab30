"""How a fresh model's weights are drawn, by the name a configuration gives."""

from collections.abc import Callable
from math import sqrt

from torch import nn


def gpt2(model: nn.Module, n_layer: int) -> None:
    """Normal weights of deviation 0.02, zero biases, and residual projections smaller by √(2 · n_layer).

    Each block adds two outputs to the residual stream: the scaling keeps its variance from growing with depth.

    Source: Radford et al., 2019, section 2.3.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            residual = name.endswith(".proj")
            nn.init.normal_(module.weight, std=0.02 / sqrt(2 * n_layer) if residual else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def xavier(model: nn.Module, n_layer: int) -> None:
    """Uniform weights whose variance is 2 / (fan in + fan out); embeddings and head as in `gpt2`.

    The three projections to q, k and v are one matrix here, as in PyTorch's own MultiheadAttention. The head keeps its
    small weights, so that a fresh model predicts all tokens alike.

    Source: Glorot and Bengio, 2010, equation 16.
    """
    gpt2(model, n_layer)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "head":
            nn.init.xavier_uniform_(module.weight)


def zero(model: nn.Module, n_layer: int) -> None:
    """`xavier`, but the projections back into the residual stream and the head are zero.

    A fresh block does nothing, and a fresh model predicts all tokens alike, or, where the head is the token embedding,
    each token to come again.

    Source: Zhang et al., Fixup, 2019, section 3, for the zeros.
    """
    xavier(model, n_layer)
    for name, module in model.named_modules():
        into_the_stream = name.startswith("blocks.") and name.endswith(".proj")
        if isinstance(module, nn.Linear) and (into_the_stream or name == "head"):
            nn.init.zeros_(module.weight)


INITIALISATIONS: dict[str, Callable[[nn.Module, int], None]] = {"gpt2": gpt2, "xavier": xavier, "zero": zero}
