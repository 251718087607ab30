"""What an attention kernel is: the call that every implementation in this folder answers."""

from abc import ABC, abstractmethod

from torch import Tensor

from tinygpt.attention.masks import Mask


class Kernel(ABC):
    """softmax(q·kᵀ / √D, where the mask allows)·v, for all heads at once.

    Implementations are frozen dataclasses without parameters of their own: their fields are what a user can set,
    they are shared by all layers, and they agree with each other on every mask that they can do.

    Source: Vaswani et al., 2017, equation 1.
    """

    @abstractmethod
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        """Attend.

        Args:
            q: (B, H, T, D).
            k: (B, H_kv, S, D); H is a multiple of H_kv, and each H / H_kv neighbouring heads share one head of k and v.
            v: (B, H_kv, S, D).
            mask: which keys each query may attend to.
            dropout: the share of attention weights zeroed, the rest scaled up; 0 outside training.

        Returns:
            (B, H, T, D). A query with nothing to attend to gets zeros, in value and in gradient; what k and v hold
            in padded places (NaN too) reaches nothing.

        Raises:
            ValueError: the shapes do not fit each other or the mask, or the kernel cannot do what is asked.
        """

    def check(self, *, device: str, dropout: float, random: bool, head_dim: int) -> None:  # noqa: B027 - most can do all
        """Raise ValueError where training would ask for what this kernel cannot do.

        Args:
            device: "cpu", "cuda", "mps".
            dropout: of attention weights.
            random: whether masks have random blocks.
            head_dim: D.
        """


def check_shapes(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
    """Raise ValueError, before any arithmetic, unless q, k and v are (B, H, T or S, D) and fit the mask."""
    mask.once(("fits", q.shape, k.shape, v.shape), lambda: _check_shapes(q, k, v, mask))


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have 4 axes, (B, H, T, D), got shape {tuple(tensor.shape)}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have one shape, got k={tuple(k.shape)}, v={tuple(v.shape)}")
    for axis, name in ((0, "B (batch)"), (3, "D (head size)")):
        if q.shape[axis] != k.shape[axis]:
            raise ValueError(
                f"q and k differ on axis {axis}, {name}: {q.shape[axis]} and {k.shape[axis]};"
                f" both are (B, H, T, D), got q={tuple(q.shape)}, k={tuple(k.shape)}"
            )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            "the heads of q must be a multiple of those of k and v (axis 1, H, of (B, H, T, D)), got"
            f" {q.shape[1]} and {k.shape[1]}"
        )
    mask.check(q, k)


def shared(x: Tensor, n_head: int) -> Tensor:
    """Keys or values (B, H_kv, S, D) for each of n_head heads of q: neighbouring heads share one."""
    return x if x.shape[1] == n_head else x.repeat_interleave(n_head // x.shape[1], dim=1)
