"""The classic family: GPT-2."""

from typing import Literal

from torch import nn

from tinygpt.attention import SDPA, Kernel, SelfAttention
from tinygpt.model.block import Block
from tinygpt.model.gpt import GPT, check
from tinygpt.model.mlp import MLP
from tinygpt.model.positions import LearnedPositions


class GPT2(GPT):
    """LayerNorm, learned positions, GELU in its tanh form, biases, the head tied to the token embedding.

    Args:
        vocab_size: V, how many ids there are.
        block_size: the most tokens seen at once.
        n_layer: decoder blocks.
        n_head: attention heads in each.
        n_embd: width C of the residual stream; a multiple of n_head.
        dropout: share dropped in training, of the embeddings, the attention weights and each residual branch.
        window: how many tokens a token sees, itself included; None: all; a list: by layer, again and again.
        n_global: the first tokens, which all see beside their window.
        n_random: blocks drawn for each block of tokens, by the layer's number, which it sees beside its window.
        random_block: tokens in such a block.
        tie_embeddings: the head's weights are the token embedding's.
        init: how weights are drawn: "xavier", whose deviation follows the width; "zero", the same with blocks that do
            nothing yet; or "gpt2", whose 0.02 is right for the widths of GPT-2 (768 and more) and too small for narrow
            models.
        gradient_checkpointing: keep only each block's input for the backward pass and compute the rest again.
        attention: the kernel.

    Raises:
        ValueError: a size is not positive, there is no window for what adds to one, dropout is not in [0, 1), init is
            none of these, or n_head does not divide n_embd.

    Source: Radford et al., 2019.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int = 128,
        n_layer: int = 4,
        n_head: int = 4,
        n_embd: int = 128,
        dropout: float = 0.0,
        window: int | list[int | None] | None = None,
        n_global: int = 0,
        n_random: int = 0,
        random_block: int = 64,
        tie_embeddings: bool = True,
        init: Literal["gpt2", "xavier", "zero"] = "xavier",
        gradient_checkpointing: bool = False,
        attention: Kernel | None = None,
    ) -> None:
        config = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check(config)
        kernel = attention if attention is not None else SDPA()
        super().__init__(
            config | {"attention": kernel},
            positions=LearnedPositions(block_size, n_embd),
            blocks=(
                Block(
                    attention_norm=nn.LayerNorm(n_embd),
                    attention=SelfAttention(n_embd, n_head, kernel=kernel, attention_dropout=dropout, dropout=dropout),
                    mlp_norm=nn.LayerNorm(n_embd),
                    mlp=MLP(n_embd, dropout=dropout),
                )
                for _ in range(n_layer)
            ),
            norm=nn.LayerNorm(n_embd),
        )
