"""What may attend to what, as a description.

A mask is described, not drawn: each kernel takes from the description what it is fast with (a flag, a boolean
matrix, a strip of one), so no (T, S) matrix exists unless a kernel asks for it. `True` means "may attend".
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Which of the S keys each of the T queries may attend to: those that every condition below allows.

    Args:
        causal: a query sees no key behind its own position; it does see its own.
        padding: (B, S) bool, True where the key is a real token; None when all are. No query sees a padded key.
        documents: (B, S) int64, the document that each key is of, by any number; None when each row is one document.
            A query sees its own document alone. The queries are the last T of the S places.
        start: position of the first query among the keys, that is, how many cached keys precede it.
    """

    causal: bool = True
    padding: Tensor | None = None
    documents: Tensor | None = None
    start: int = 0
    _drawn: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise ValueError, before any arithmetic, where the mask does not fit q (B, H, T, D) and k (B, H, S, D)."""
        (B, _, T, _), S = q.shape, k.shape[2]
        for needed, kind in ((self.causal, "causal"), (self.documents is not None, "document")):
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

    def dense(self, T: int, S: int, device: torch.device) -> Tensor:
        """The mask as a boolean matrix, (1 or B, 1, T, S): it broadcasts over the heads."""
        allowed = torch.ones(1, 1, T, S, dtype=torch.bool, device=device)
        if self.causal:
            allowed = allowed.tril(diagonal=self.start)
        if self.padding is not None:
            allowed = allowed & self.padding[:, None, None, :]
        if self.documents is not None:
            allowed = allowed & (self.documents[:, None, S - T :, None] == self.documents[:, None, None, :])
        return allowed

    def drawn(self, T: int, S: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """What a softmax over the matrix needs, drawn once and not in every layer.

        Returns:
            `dense`, but a query that sees nothing is given all keys, for a softmax over nothing is NaN; and these
            queries, (B, 1, T, 1), whose output is to be cut to zero, or None where no padding makes any: a query that
            sees its own document, or what is before it, sees itself.
        """
        key = (T, S, device)
        if key in self._drawn:
            return self._drawn[key]
        allowed, empty = self.dense(T, S, device), None
        if self.padding is not None:
            empty = ~allowed.any(dim=-1, keepdim=True)
            allowed = allowed | empty
        if not torch.compiler.is_compiling():  # a compiled graph draws equal matrices once by itself
            self._drawn[key] = allowed, empty
        return allowed, empty
