"""Normalisation without a mean."""

from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / √(mean(x²) + eps) · weight, over the last axis and in the dtype of the weights.

    Under autocast queries and keys come in a shorter dtype: they are normalised in the longer one, as everything else
    is, and by the fused kernel where there is one.

    Source: Zhang and Sennrich, 2019, equation 4.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))
