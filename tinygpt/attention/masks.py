"""What may attend to what, as a description.

A mask is described, not drawn: each kernel takes from the description what it is fast with (a flag, a boolean
matrix, a strip of one), so no (T, S) matrix exists unless a kernel asks for it. `True` means "may attend".
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Which of the S keys each of the T queries may attend to.

    Args:
        causal: a query sees no key behind its own position; it does see its own.
        padding: (B, S) bool, True where the key is a real token; None when all are. No query sees a padded key.
        start: position of the first query among the keys, that is, how many cached keys precede it.
    """

    causal: bool = True
    padding: Tensor | None = None
    start: int = 0

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise ValueError, before any arithmetic, where the mask does not fit q (B, H, T, D) and k (B, H, S, D)."""
        (B, _, T, _), S = q.shape, k.shape[2]
        if self.causal and self.start + T != S:
            raise ValueError(
                f"a causal mask needs S = start + T keys, got S={S} keys for T={T} queries that start at {self.start}"
            )
        if self.padding is None:
            return
        if self.padding.dtype != torch.bool:
            raise ValueError(f"padding must be boolean, True on real tokens, got {self.padding.dtype}")
        if tuple(self.padding.shape) != (B, S):
            raise ValueError(f"padding must be (B, S) = ({B}, {S}), got {tuple(self.padding.shape)}")

    def dense(self, T: int, S: int, device: torch.device) -> Tensor:
        """The mask as a boolean matrix, (1 or B, 1, T, S): it broadcasts over the heads."""
        allowed = torch.ones(1, 1, T, S, dtype=torch.bool, device=device)
        if self.causal:
            allowed = allowed.tril(diagonal=self.start)
        if self.padding is not None:
            allowed = allowed & self.padding[:, None, None, :]
        return allowed
