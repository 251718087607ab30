"""One decoder block: attention, then the MLP, each behind a norm and around a residual."""

from torch import Tensor, nn

from tinygpt.attention.masks import Mask
from tinygpt.attention.rotary import Rotation
from tinygpt.attention.self_attention import LayerCache, SelfAttention


class Block(nn.Module):
    """Pre-norm decoder block, (B, T, C) → (B, T, C).

    Source: Radford et al., 2019, section 2.3, for the norms in front.
    """

    def __init__(self, *, attention_norm: nn.Module, attention: SelfAttention, mlp_norm: nn.Module, mlp: nn.Module):
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask, rotation, cache)
        return x + self.mlp(self.mlp_norm(x))
