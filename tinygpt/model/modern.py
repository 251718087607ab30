"""The modern family: what Qwen3 computes."""

from typing import Literal

from tinygpt.attention import SDPA, Kernel, SelfAttention
from tinygpt.attention.self_attention import head_size
from tinygpt.model.block import Block
from tinygpt.model.gpt import GPT, check
from tinygpt.model.lookups import MatchEmbedding, NgramEmbedding
from tinygpt.model.mlp import SwiGLU
from tinygpt.model.norm import RMSNorm
from tinygpt.model.positions import RotaryPositions


class Modern(GPT):
    """RMSNorm, also of each head's q and k, rotary positions, SwiGLU, heads that share keys and values, no biases.

    So far it is Qwen3; what is looked up (`ngram_rows`, `match`) is beyond it and has no twin in `transformers`.
    `config` holds what None stands for, as a number.

    Args:
        vocab_size: V, how many ids there are.
        block_size: the most tokens seen at once.
        n_layer: decoder blocks.
        n_head: attention heads in each.
        n_kv_head: heads of keys and values, a divisor of n_head. None: n_head, so that none are shared.
        n_embd: width C of the residual stream.
        head_dim: size D of each head, even. None: n_embd / n_head.
        mlp_dim: width inside the MLP. None: 8/3 · n_embd, up to a multiple of 32; the three matrices are then about as
            large as the two of GPT-2.
        dropout: share dropped in training, of the embeddings and each residual branch. Attention weights are not
            dropped: PyTorch's fused kernel for CPUs cannot, and a step without that kernel takes a quarter longer.
        window: how many tokens a token sees, itself included; None: all; a list: by layer, again and again.
        n_global: the first tokens, which all see beside their window.
        n_random: blocks drawn for each block of tokens, by the layer's number, which it sees beside its window.
        random_block: tokens in such a block.
        tie_embeddings: the head's weights are the token embedding's.
        rope_theta: base of the rotary positions.
        norm_eps: what every norm adds to the mean square.
        init: how weights are drawn: "xavier", whose deviation follows the width; "zero", the same with blocks that do
            nothing yet; or "gpt2", whose 0.02 is right for the widths of GPT-2 (768 and more) and too small for narrow
            models.
        ngram_rows: rows of the table of pairs of tokens, of threes, and so on; see `NgramEmbedding`. None: no tables.
        ngram_dim: length of their vectors.
        ngram_dropout: share of the tokens that get no vector from a table, in training.
        match: how many last tokens are compared with all that came before; see `MatchEmbedding`. 0: none.
        gradient_checkpointing: keep only each block's input for the backward pass and compute the rest again.
        attention: the kernel.

    Raises:
        ValueError: a size, theta or eps is not positive, there is no window for what adds to one, dropout is not in
            [0, 1), init is none of these, a number of heads does not divide what it must, or head_dim is odd.

    Source: Yang et al., Qwen3 Technical Report, 2025, section 2.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int = 128,
        n_layer: int = 4,
        n_head: int = 4,
        n_kv_head: int | None = None,
        n_embd: int = 128,
        head_dim: int | None = None,
        mlp_dim: int | None = None,
        dropout: float = 0.0,
        window: int | list[int | None] | None = None,
        n_global: int = 0,
        n_random: int = 0,
        random_block: int = 64,
        tie_embeddings: bool = False,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-6,
        init: Literal["gpt2", "xavier", "zero"] = "xavier",
        ngram_rows: list[int] | None = None,
        ngram_dim: int = 32,
        ngram_dropout: float = 0.0,
        match: int = 0,
        gradient_checkpointing: bool = False,
        attention: Kernel | None = None,
    ) -> None:
        config = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check(config)
        for name in ("rope_theta", "norm_eps"):
            if not config[name] > 0:
                raise ValueError(f"{name} must be above 0, got {config[name]}")
        kernel = attention if attention is not None else SDPA()
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        head_dim = head_size(n_embd, n_head) if head_dim is None else head_dim
        mlp_dim = -(-8 * n_embd // (3 * 32)) * 32 if mlp_dim is None else mlp_dim
        resolved = {"attention": kernel, "n_kv_head": n_kv_head, "head_dim": head_dim, "mlp_dim": mlp_dim}
        super().__init__(
            config | resolved,
            positions=RotaryPositions(head_dim, rope_theta),
            blocks=(
                Block(
                    attention_norm=RMSNorm(n_embd, norm_eps),
                    attention=SelfAttention(
                        n_embd,
                        n_head,
                        kernel=kernel,
                        n_kv_head=n_kv_head,
                        head_dim=head_dim,
                        bias=False,
                        q_norm=RMSNorm(head_dim, norm_eps),
                        k_norm=RMSNorm(head_dim, norm_eps),
                        dropout=dropout,
                    ),
                    mlp_norm=RMSNorm(n_embd, norm_eps),
                    mlp=SwiGLU(n_embd, mlp_dim, dropout=dropout),
                )
                for _ in range(n_layer)
            ),
            norm=RMSNorm(n_embd, norm_eps),
            lookups=[
                *([NgramEmbedding(n_embd, ngram_rows, ngram_dim, ngram_dropout)] if ngram_rows else []),
                *([MatchEmbedding(vocab_size, n_embd, match)] if match else []),
            ],
        )
