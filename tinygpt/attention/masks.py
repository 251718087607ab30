"""What may attend to what, as a description.

A mask is described, not drawn: each kernel takes from the description what it is fast with (a flag, a boolean
matrix, a strip of one, a predicate), so no (T, S) matrix exists unless a kernel asks for it. `True` means "may attend".
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Mask:
    """Which of the S keys each of the T queries may attend to: those that every condition below allows.

    Tokens have places, 0 to S - 1 in a row, and positions, the count of real tokens of their document in front of them.
    A window goes by places; global tokens and random blocks go by positions. So a padded row or a packed document sees
    what it would see alone, provided that its tokens lie together, without padding or other documents among them.

    Args:
        causal: a query sees no key behind its own place; it does see its own.
        padding: (B, S) bool, True where the key is a real token; None when all are. No query sees a padded key.
        documents: (B, S) int64, the document that each key is of, by any number; None when each row is one document.
            A query sees its own document alone. The queries are the last T of the S places.
        start: place of the first query among the keys, that is, how many cached keys precede it.
        window: a query sees the last `window` keys up to its own (without causality as many behind it); None: all.
        n_global: the first tokens of each document, which every query sees beside its window.
        random: (N, N) bool, the blocks of keys that each block of queries sees beside its window; see `random_blocks`.
        random_block: how many positions are a block.
        finite: keys and values are finite in padded places too, as in a cache, so that there is nothing to `silence`.

    Raises:
        ValueError: window or random_block is below 1, or n_global below 0.

    Source: Beltagy et al., 2020 (Longformer), for the window and the global tokens; Zaheer et al., 2020 (BigBird), for
    the random blocks.
    """

    causal: bool = True
    padding: Tensor | None = None
    documents: Tensor | None = None
    start: int = 0
    window: int | None = None
    n_global: int = 0
    random: Tensor | None = None
    random_block: int = 64
    finite: bool = False
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("window", 1), ("n_global", 0), ("random_block", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise ValueError, before any arithmetic, where the mask does not fit q (B, H, T, D) and k (B, H, S, D)."""
        (B, _, T, _), S = q.shape, k.shape[2]
        for needed, kind in (
            (self.causal, "causal"),
            (self.documents is not None, "document"),
            (self.window is not None, "window"),
        ):
            if needed and self.start + T != S:
                raise ValueError(
                    f"a {kind} mask needs S = start + T keys, got S={S} keys for T={T} queries"
                    f" that start at {self.start}"
                )
        for name, tensor, dtype, words in (
            ("padding", self.padding, torch.bool, "boolean, True on real tokens"),
            ("documents", self.documents, torch.int64, "int64, a number for each document"),
        ):
            if tensor is None:
                continue
            if tensor.dtype != dtype:
                raise ValueError(f"{name} must be {words}, got {tensor.dtype}")
            if tuple(tensor.shape) != (B, S):
                raise ValueError(f"{name} must be (B, S) = ({B}, {S}), got {tuple(tensor.shape)}")
        if self.random is not None and self.random.shape[0] * self.random_block < S:
            raise ValueError(
                f"random must hold {-(-S // self.random_block)} blocks of {self.random_block} for S={S} keys,"
                f" got {tuple(self.random.shape)}"
            )

    @property
    def positions(self) -> Tensor | None:
        """(B, S) int64, see `count`; None where they are the places."""
        if self.padding is None and self.documents is None:
            return None
        return self.once("positions", lambda: count(self.padding, self.documents))

    def sees(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The whole mask as a predicate.

        Args:
            b: rows of the batch; int64, like the others, and they broadcast.
            q: places of queries among the keys.
            k: places of keys.

        Returns:
            bool, whether the query may attend to the key, by the shape that the arguments that matter broadcast to.
        """

        def position(place: Tensor) -> Tensor:
            return place if self.positions is None else self.positions[b, place]

        allowed = q >= k if self.causal else torch.ones_like(q >= k)
        if self.window is not None:
            near = (q - k).abs() < self.window
            if self.n_global:
                near = near | (position(k) < self.n_global)
            if self.random is not None:
                near = near | self.random[position(q) // self.random_block, position(k) // self.random_block]
            allowed = allowed & near
        if self.padding is not None:
            allowed = allowed & self.padding[b, k]
        if self.documents is not None:
            allowed = allowed & (self.documents[b, q] == self.documents[b, k])
        return allowed

    @property
    def n_rows(self) -> int:
        """B where the rows of a batch differ, 1 where they are alike."""
        given = self.padding if self.padding is not None else self.documents
        return 1 if given is None else given.shape[0]

    def strip(self, first: int, T: int, S: int, device: torch.device) -> Tensor:
        """The mask between the T queries from place `first` on and the first S keys, (1 or B, 1, T, S)."""
        rows = torch.arange(self.n_rows, device=device)[:, None, None]
        queries = torch.arange(first, first + T, device=device)[:, None]
        return self.sees(rows, queries, torch.arange(S, device=device)).view(-1, 1, T, S)

    def dense(self, T: int, S: int, device: torch.device) -> Tensor:
        """The mask as a boolean matrix, (1 or B, 1, T, S): it broadcasts over the heads."""
        return self.strip(self.start, T, S, device)

    def drawn(self, T: int, S: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """What a softmax over the matrix needs, drawn once and not in every layer; see `fill_empty`."""
        return self.once(("drawn", T, S, device), lambda: self.fill_empty(self.dense(T, S, device)))

    def fill_empty(self, allowed: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give each query that sees nothing all keys, for a softmax over nothing is NaN.

        Args:
            allowed: (..., T, S) bool, of this mask.

        Returns:
            The same without such queries; and which they are, (..., T, 1), whose output is to be cut to zero, or None
            where no padding makes any: a query that sees its own document, or what is before it, sees itself.
        """
        if self.padding is None:
            return allowed, None
        empty = ~allowed.any(dim=-1, keepdim=True)
        return allowed | empty, empty

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns, made once for all layers that share this mask."""
        if key in self._made:
            return self._made[key]
        made = make()
        if not torch.compiler.is_compiling():  # a compiled graph makes equal things once by itself
            self._made[key] = made
        return made

    def silence(self, x: Tensor) -> Tensor:
        """Keys or values (B, H, S, D) with zeros in padded places.

        A weight of zero does not silence a NaN (0 · NaN is NaN), so what is padded is zeroed as well as masked.
        """
        return x if self.padding is None or self.finite else x.masked_fill(~self.padding[:, None, :, None], 0.0)


def count(padding: Tensor | None, documents: Tensor | None) -> Tensor:
    """Each token's position: how many real tokens of its document come before it.

    So a document starts at 0 wherever it lies in a row, and is the same text as alone in one.

    Args:
        padding: (B, S) bool, True on real tokens; None when all are.
        documents: (B, S) int64, the document of each token, in any order; None when each row is one. One of the two
            is given.

    Returns:
        (B, S) int64. In padded places they mean nothing.
    """
    if documents is None:
        assert padding is not None
        return padding.cumsum(dim=1) - padding.long()
    documents, order = documents.sort(dim=1, stable=True)  # each document in one piece, its tokens in their order
    real = torch.ones_like(documents) if padding is None else padding.gather(1, order).long()
    before = real.cumsum(dim=1) - real  # real tokens, of this document and those in front of it
    first = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
    in_front = before.where(first, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter(1, order, before - in_front)


def random_blocks(n_blocks: int, n_random: int, seed: int) -> Tensor:
    """(N, N) bool: for each block of queries n_random blocks in front of it, or all where there are fewer.

    A row depends on the seed and its own number, not on N: a longer context sees what a shorter one saw.
    """
    seen = np.zeros((n_blocks, n_blocks), dtype=bool)
    for block in range(n_blocks):
        seen[block, np.random.default_rng([seed, block]).permutation(block)[:n_random]] = True
    return torch.from_numpy(seen)
