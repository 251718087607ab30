"""What the tests of kernels share: the kernels in short strips, inputs, masks, and how two kernels are compared."""

from collections.abc import Callable
from dataclasses import replace

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tests.conftest import CONF, choices
from tinygpt.attention import Kernel, Manual, Mask
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.masks import random_blocks
from tinygpt.attention.sliding_window import SlidingWindow
from tinygpt.config import target

B, H, T, D = 3, 8, 6, 4


def configured(name: str) -> Kernel:
    """The kernel of a configuration, in strips and blocks so short that a few tokens are several."""
    node = OmegaConf.load(CONF / "attention" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    kernel = target({"_target_": node.get("attention", node)["_target_"]})()
    if isinstance(kernel, Chunked):
        return replace(kernel, strip=4)
    return replace(kernel, block=3) if isinstance(kernel, SlidingWindow) else kernel


def trains(kernel: Kernel) -> bool:
    """Whether the kernel has a backward pass on a CPU."""
    try:
        kernel.check(device="cpu", dropout=0.0, random=False, head_dim=64)
    except ValueError:
        return False
    return True


TRAINABLE = [name for name in choices("attention") if trains(configured(name))]


def qkv(
    T: int = T, S: int | None = None, dtype: torch.dtype = torch.float64, n_kv_head: int = H, B: int = B
) -> tuple[Tensor, Tensor, Tensor]:
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, n_kv_head, S, D), (B, n_kv_head, S, D))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)  # type: ignore[return-value]


def left(S: int) -> Tensor:
    """Rows of S, S - 2 and one real tokens, the others in front; (3, S)."""
    return torch.arange(S) >= torch.tensor([[min(2, S - 1)], [0], [S - 1]])


def documents(S: int) -> Tensor:
    """(3, S), any numbers."""
    ends = torch.tensor([[2, 5], [50, 51], [1, 2]])
    return torch.tensor([9, 3, 5])[(torch.arange(S)[:, None] >= ends[:, None]).sum(-1)]


WINDOWS: dict[str, Callable[[int], dict]] = {
    "window of 1": lambda S: {"window": 1},
    "window": lambda S: {"window": 3},
    "window and global": lambda S: {"window": 3, "n_global": 2},
    "window and random": lambda S: {"window": 2, "random": random_blocks(S, 1, seed=1), "random_block": 2},
}
MASKS: dict[str, Callable[[int], Mask]] = {
    "causal": lambda S: Mask(),
    "left padding": lambda S: Mask(padding=left(S)),
    "right padding": lambda S: Mask(padding=left(S).flip(1)),
    "a row of padding": lambda S: Mask(padding=left(S) & torch.tensor([[True], [True], [False]])),
    "documents": lambda S: Mask(documents=documents(S)),
    "documents and padding": lambda S: Mask(padding=left(S).flip(1), documents=documents(S)),
}
MASKS |= {
    f"{name}, {window}": lambda S, mask=mask, more=more: replace(mask(S), **more(S))
    for name, mask in list(MASKS.items())
    for window, more in WINDOWS.items()
}
MASKS |= {
    "none": lambda S: Mask(causal=False),
    "padding alone": lambda S: Mask(causal=False, padding=left(S)),
    "window alone": lambda S: Mask(causal=False, window=3),
    "window and global alone": lambda S: Mask(causal=False, padding=left(S), window=3, n_global=2),
    "documents alone": lambda S: Mask(causal=False, documents=documents(S)),
}


def able(kernel: Kernel, mask: Mask) -> bool:
    """Whether the kernel has this mask; where not, it says so by name."""
    if isinstance(kernel, SlidingWindow):
        return mask.random is None and (mask.causal or mask.window is None)
    return True


def assert_equal(kernel: Kernel, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Outputs and gradients, in float64."""
    expected = Manual()(q, k, v, mask)
    if not trains(kernel):
        out = kernel(q.detach(), k.detach(), v.detach(), mask)
        torch.testing.assert_close(out, expected.detach(), atol=1e-10, rtol=0)
        return
    out = kernel(q, k, v, mask)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    upstream = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(y, (q, k, v), upstream) for y in (out, expected))
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, atol=1e-10, rtol=0)
