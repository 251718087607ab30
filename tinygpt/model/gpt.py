"""The decoder-only transformer: a stack of blocks between an embedding and a head.

`GPT` runs whatever stack a family builds; a family (`GPT2`, `Modern`) is a constructor that says what the parts are.
Nothing in here knows of training, of text or of files.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tinygpt.attention.masks import Mask
from tinygpt.attention.self_attention import LayerCache, SelfAttention
from tinygpt.model.init import INITIALISATIONS
from tinygpt.model.positions import count


class Cache(Protocol):
    """The keys and values of the tokens so far, as a model sees them."""

    @property
    def length(self) -> int:
        """How many tokens are stored."""
        ...

    @property
    def layers(self) -> Sequence[LayerCache]:
        """One cache for each block."""
        ...


def check(config: dict[str, Any]) -> None:
    """Raise ValueError where a family's keywords are out of the range that they have in every family."""
    for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_kv_head", "n_embd", "head_dim", "mlp_dim"):
        if config.get(name) is not None and config[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {config[name]}")
    if not 0.0 <= config["dropout"] < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, got {config['dropout']}")
    if config["init"] not in INITIALISATIONS:
        raise ValueError(f"init must be one of {', '.join(INITIALISATIONS)}, got {config['init']!r}")


class GPT(nn.Module):
    """What every family shares: the forward pass, its size and its cost.

    Args:
        config: the family's keywords, plain values and the kernel, that build the same model again.
        positions: how the model gets to know where a token stands; see `tinygpt/model/positions.py`.
        blocks: the stack.
        norm: in front of the head.
    """

    def __init__(
        self, config: dict[str, Any], *, positions: nn.Module, blocks: Iterable[nn.Module], norm: nn.Module
    ) -> None:
        super().__init__()
        self.config = config
        self.n_layer: int = config["n_layer"]
        self.block_size: int = config["block_size"]
        self.gradient_checkpointing: bool = config["gradient_checkpointing"]
        self.token_embedding = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.positions = positions
        self.embedding_dropout = nn.Dropout(config["dropout"])
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)
        INITIALISATIONS[config["init"]](self, self.n_layer)
        if config["tie_embeddings"]:
            self.head.weight = self.token_embedding.weight

    def forward(
        self,
        ids: Tensor,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Score every token of the vocabulary as the next one.

        Args:
            ids: (B, T) int64 in [0, V).
            padding: (B, S) bool, True on real tokens, over the cached tokens and these; None when all are real.
            documents: (B, S) int64, the document of each token, over the cached tokens and these, by any number; None
                when each row is one document. Tokens see their own document alone. Positions count its real tokens
                only, so a document equals itself alone in a row, without padding.
            cache: the keys and values of the tokens before these; it takes in these too.
            last_only: score the last position alone, (B, 1, V): all that sampling needs.

        Returns:
            logits (B, T, V). In padded places they mean nothing.

        Raises:
            ValueError: more than block_size tokens, cached ones included.
        """
        start = cache.length if cache is not None else 0
        end = start + ids.shape[1]
        if end > self.block_size:
            raise ValueError(f"the model sees block_size={self.block_size} tokens at most, got {end}")
        if padding is None and documents is None:
            positions = torch.arange(start, end, device=ids.device)  # (T,)
        else:
            positions = count(padding, documents)[:, start:]  # (B, T)
        x, rotation = self.positions(self.token_embedding(ids), positions)  # (B, T, C)
        x = self.embedding_dropout(x)
        mask = Mask(padding=padding, documents=documents, start=start)
        for i, block in enumerate(self.blocks):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, mask, rotation, use_reentrant=False)
            else:
                x = block(x, mask, rotation, cache.layers[i] if cache is not None else None)
        if last_only:
            x = x[:, -1:]
        return self.head(self.norm(x))  # (B, T, V)

    def n_parameters(self) -> int:
        """Trainable numbers, tied ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token: forward, and backward at twice the forward's cost.

        Matrix products alone: 6 for each weight (the embedding tables are looked up, not multiplied; the head is),
        and 12 · H · D · block_size in each layer for q·kᵀ and weights·v, the causal half not discounted.

        Source: Chowdhery et al., 2022, appendix B.
        """
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        heads = sum(m.n_head * m.head_dim for m in self.modules() if isinstance(m, SelfAttention))
        return 6 * weights + 12 * heads * self.block_size
