"""From logits to the number that training makes small."""

import torch.nn.functional as F
from torch import Tensor

NOT_COUNTED = -100  # the target of a place that carries no loss


def next_token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Negative log-likelihood of the target tokens, in nats.

    Args:
        logits: (B, T, V), unnormalised; position t predicts targets[:, t].
        targets: (B, T) int64 ids in [0, V), already shifted; -100 is not counted.
        reduction: "mean" over the counted tokens, or their "sum".

    Returns:
        Scalar, computed in fp32. A mean over no counted token is NaN.

    Raises:
        ValueError: the leading dimensions differ.

    Source: Radford et al., 2019, equation 1.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits (B, T, V) and targets (B, T) must agree on B and T,"
            f" got logits={tuple(logits.shape)}, targets={tuple(targets.shape)}"
        )
    flat = logits.flatten(0, -2).float()
    return F.cross_entropy(flat, targets.flatten(), ignore_index=NOT_COUNTED, reduction=reduction)
