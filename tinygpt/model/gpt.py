"""The decoder-only transformer: a stack of blocks between an embedding and a head.

`GPT` runs whatever stack a family builds; a family (`GPT2`) is a constructor that says what the parts are. Nothing in
here knows of training, of text or of files.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tinygpt.attention.masks import Mask
from tinygpt.attention.self_attention import LayerCache
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


class GPT(nn.Module):
    """What every family shares: the forward pass, its size and its cost.

    A family's constructor keeps its own keywords in `config`, plain values that build the same model again, and sets
    the parts: `token_embedding`, `position_embedding`, `blocks`, `norm`, `head`.
    """

    config: dict[str, Any]
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    gradient_checkpointing: bool
    token_embedding: nn.Embedding
    position_embedding: nn.Embedding
    embedding_dropout: nn.Dropout
    blocks: nn.ModuleList
    norm: nn.Module
    head: nn.Linear

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
        x = self.embedding_dropout(self.token_embedding(ids) + self.position_embedding(positions))  # (B, T, C)
        mask = Mask(padding=padding, documents=documents, start=start)
        for i, block in enumerate(self.blocks):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask, cache.layers[i] if cache is not None else None)
        if last_only:
            x = x[:, -1:]
        return self.head(self.norm(x))  # (B, T, V)

    def n_parameters(self) -> int:
        """Trainable numbers, tied ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token: forward, and backward at twice the forward's cost.

        Matrix products alone: 6 for each weight (the embedding tables are looked up, not multiplied; the head is),
        and 12 · n_layer · C · block_size for q·kᵀ and weights·v, the causal half not discounted.

        Source: Chowdhery et al., 2022, appendix B.
        """
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return 6 * weights + 12 * self.n_layer * self.n_embd * self.block_size
