"""AdamW with weight decay where it belongs."""

from collections.abc import Sequence
from math import inf

from torch import nn
from torch.optim import AdamW

from tinygpt.optim import sparse_tables


def adamw(
    model: nn.Module,
    *,
    lr: float = 3e-3,
    betas: Sequence[float] = (0.9, 0.99),
    weight_decay: float = 0.1,
    eps: float = 1e-8,
) -> AdamW:
    """AdamW in its fused form, in two groups: matrices and embeddings decay, biases and norm weights do not.

    Args:
        model: whose trainable parameters are optimised.
        lr: the peak learning rate, which a schedule scales.
        betas: decay rates of the first and second moment.
        weight_decay: per step, times the learning rate, of the first group.
        eps: added to the square root of the second moment.

    Raises:
        ValueError: a value is out of its range, or the model has tables with sparse gradients.

    Source: Loshchilov and Hutter, 2019, algorithm 2; Radford et al., 2018, section 4.1, for what decays.
    """
    if sparse_tables(model):
        raise ValueError("AdamW changes every row of a table in every step; model.ngram_rows needs optimizer=muon")
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"name": "adamw", "params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"name": "adamw", "params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if not 0 < lr < inf:
        raise ValueError(f"lr must be above 0 and finite, got {lr}")
    if not 0 <= weight_decay < inf:  # PyTorch looks at its own default alone, not at a group's
        raise ValueError(f"weight_decay must be at least 0 and finite, got {weight_decay}")
    if len(betas) != 2:
        raise ValueError(f"betas must be two numbers, got {list(betas)}")
    beta1, beta2 = betas
    return AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
