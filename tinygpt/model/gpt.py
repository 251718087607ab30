"""The decoder-only transformer: a stack of blocks between an embedding and a head.

`GPT` runs whatever stack a family builds; a family (`GPT2`, `Modern`) is a constructor that says what the parts are.
Nothing in here knows of training, of text or of files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tinygpt.attention.masks import Mask, random_blocks
from tinygpt.attention.self_attention import LayerCache, SelfAttention
from tinygpt.linear import Linear
from tinygpt.model.init import INITIALISATIONS
from tinygpt.model.lookups import NOTHING, History


class Cache(Protocol):
    """The keys and values of the tokens so far, as a model sees them."""

    @property
    def layers(self) -> Sequence[LayerCache]:
        """One cache for each block."""
        ...

    def extend(self, ids: Tensor, padding: Tensor | None) -> tuple[Tensor, list[Mask]]:
        """Make room for these tokens; return their positions, and what they may see in each layer."""
        ...

    @property
    def history(self) -> History:
        """The ids of the rows up to the tokens of the last `extend`."""
        ...


def check(config: dict[str, Any]) -> None:
    """Raise ValueError where a family's keywords are out of the range that they have in every family."""
    for name in (
        "vocab_size",
        "block_size",
        "n_layer",
        "n_head",
        "n_kv_head",
        "n_embd",
        "head_dim",
        "mlp_dim",
        "random_block",
    ):
        if config.get(name) is not None and config[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {config[name]}")
    windows = layer_windows(config)
    if not all(window is None or window >= 1 for window in windows):
        raise ValueError(f"window must be at least 1, or null for all tokens, got {config['window']}")
    for name in ("n_global", "n_random"):
        if config[name] < 0:
            raise ValueError(f"{name} must be at least 0, got {config[name]}")
        if config[name] and not any(windows):
            raise ValueError(f"{name} adds to what a window lets a token see; set window too, or {name}=0")
    if not 0.0 <= config["dropout"] < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, got {config['dropout']}")
    if config["init"] not in INITIALISATIONS:
        raise ValueError(f"init must be one of {', '.join(INITIALISATIONS)}, got {config['init']!r}")


def layer_windows(config: dict[str, Any]) -> list[int | None]:
    """The window of each layer: the one of all, or those of a list, again and again.

    Raises:
        ValueError: the list is empty, or longer than the model is deep.
    """
    windows = config["window"] if isinstance(config["window"], list | tuple) else [config["window"]]
    if not 1 <= len(windows) <= config["n_layer"]:
        raise ValueError(f"window must have 1 to n_layer={config['n_layer']} entries, got {len(windows)}")
    return [windows[i % len(windows)] for i in range(config["n_layer"])]


class GPT(nn.Module):
    """What every family shares: the forward pass, its size and its cost.

    Args:
        config: the family's keywords, plain values and the kernel, that build the same model again.
        positions: how the model gets to know where a token stands; see `tinygpt/model/positions.py`.
        blocks: the stack.
        norm: in front of the head.
        lookups: what is added to the token embeddings; see `tinygpt/model/lookups.py`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        positions: nn.Module,
        blocks: Iterable[nn.Module],
        norm: nn.Module,
        lookups: Iterable[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.config = config
        self.n_layer: int = config["n_layer"]
        self.block_size: int = config["block_size"]
        self.gradient_checkpointing: bool = config["gradient_checkpointing"]
        self.windows = layer_windows(config)
        self.random: Tensor | None  # saved with the weights, whatever another version of the library would draw
        self.register_buffer("random", None)
        if config["n_random"]:
            n_blocks = -(-self.block_size // config["random_block"])
            tables = [random_blocks(n_blocks, config["n_random"], seed=layer) for layer in range(self.n_layer)]
            self.random = torch.stack(tables)
        self.token_embedding = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.lookups = nn.ModuleList(lookups)
        self.positions = positions
        self.dropout: float = config["dropout"]
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = Linear(config["n_embd"], config["vocab_size"], bias=False)
        INITIALISATIONS[config["init"]](self, self.n_layer)
        for module in self.lookups.modules():
            if isinstance(module, nn.Embedding):
                nn.init.zeros_(module.weight)  # what was never seen adds nothing
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
            padding: (B, T) bool, True on real tokens; None when all are real.
            documents: (B, T) int64, the document of each token, by any number; None when each row is one document.
                Tokens see their own document alone. Positions count its real tokens only, so a document whose tokens
                lie together equals itself alone in a row.
            cache: the keys and values of the tokens before these; it takes in these too. With it each row is one
                document, and padding lies behind a row's tokens.
            last_only: score the last position alone, (B, 1, V): all that sampling needs.

        Returns:
            logits (B, T, V). In padded places they mean nothing.

        Raises:
            ValueError: more than max_length tokens, or documents with a cache.
        """
        T = ids.shape[1]
        if cache is not None:
            if documents is not None:
                raise ValueError("with a cache each row is one document, got documents")
            positions, masks = cache.extend(ids, padding)
        else:
            if self.max_length < T:
                raise ValueError(f"the model sees block_size={self.block_size} tokens at most, got {T}")
            full = Mask(padding=padding, documents=documents)
            # (T,), or (B, T) where rows differ
            positions = torch.arange(T, device=ids.device) if full.positions is None else full.positions
            masks = self.layer_masks(full)
        x = self.token_embedding(ids)  # (B, T, C)
        if self.lookups:
            history = cache.history if cache is not None else self._history(ids, padding, documents)
            for lookup in self.lookups:
                x = x + lookup(history)
        x, rotation = self.positions(x, positions)
        if self.training:
            x = F.dropout(x, self.dropout)
        for i, (block, mask) in enumerate(zip(self.blocks, masks, strict=True)):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, mask, rotation, use_reentrant=False)
            else:
                x = block(x, mask, rotation, cache.layers[i] if cache is not None else None)
        if last_only:
            x = x[:, -1:]
        return self.head(self.norm(x))  # (B, T, V)

    @staticmethod
    def _history(ids: Tensor, padding: Tensor | None, documents: Tensor | None) -> History:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return History(ids if padding is None else ids.where(padding, NOTHING), places, documents)

    @property
    def max_length(self) -> float:
        """The most tokens in a row: block_size, or infinity.

        It is infinity where positions go on for ever and no token sees one that is further away than in training:
        every layer has a window of at most block_size tokens and nothing beside it, and nothing is looked up.
        """
        beside = self.config["n_global"] or self.config["n_random"] or len(self.lookups)
        near = all(window is not None and window <= self.block_size for window in self.windows)
        return inf if self.positions.endless and near and not beside else self.block_size

    def layer_masks(self, full: Mask) -> list[Mask]:
        """What each layer's tokens may see of what `full` shows; layers that see the same share one mask."""
        shared: dict[int | None, Mask] = {None: full}
        masks = []
        for i, window in enumerate(self.windows):
            random = None if self.random is None else self.random[i]
            if window not in shared or (window is not None and random is not None):  # each layer has its own blocks
                sizes = {"n_global": self.config["n_global"], "random_block": self.config["random_block"]}
                shared[window] = replace(full, window=window, random=random, **sizes)
            masks.append(shared[window])
        return masks

    def n_parameters(self) -> int:
        """Trainable numbers, tied ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token: forward, and backward at twice the forward's cost.

        Matrix products alone: 6 for each weight (the embedding tables are looked up, not multiplied; the head is),
        and 12 · H · D in each layer for q·kᵀ and weights·v of each key that a token sees, which are block_size, the
        causal half not discounted, or those of its window, the global ones and the random blocks.

        Source: Chowdhery et al., 2022, appendix B.
        """
        weights = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        heads = [m.n_head * m.head_dim for m in self.modules() if isinstance(m, SelfAttention)]
        beside = self.config["n_global"] + self.config["n_random"] * self.config["random_block"]
        keys = [self.block_size if w is None else min(self.block_size, w + beside) for w in self.windows]
        return 6 * weights + 12 * sum(h * k for h, k in zip(heads, keys, strict=True))
