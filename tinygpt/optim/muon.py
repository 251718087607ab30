"""Muon: an orthogonalised momentum for the hidden matrices, AdamW and Adagrad for the rest, as one optimizer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from tinygpt import hardware
from tinygpt.optim import sparse_tables

MARGIN = 1.02  # in bfloat16 values leave their interval by a hundredth, and beyond it a polynomial grows without end
LOWEST = {2: 0.1, 3: 0.05, 4: 0.02, 5: 0.005, 6: 0.001}  # by iterations: from which singular value on they are right


@cache
def polynomials(iterations: int) -> list[tuple[float, float, float]]:
    """Odd polynomials a·x + b·x³ + c·x⁵ whose composition is nearest to 1 from the lowest singular value to 1.

    Each is the best one for the interval to which those before it lead, and a little more.

    Source: Amsel et al., The Polar Express, 2025, theorem 3.1.
    """
    low, high = LOWEST[iterations], 1.0
    found = []
    for _ in range(iterations):
        a, b, c, error = _nearest_to_one(low, high)
        found.append((a, b, c))
        low, high = 1 - error, MARGIN * (1 + error)
    return found


def _nearest_to_one(low: float, high: float) -> tuple[float, float, float, float]:
    """a, b, c and the largest error of the best polynomial on an interval, by the exchange algorithm of Remez.

    The error has one size and turns its sign at four places: both ends, and the two extrema between them.
    """
    first, second = (3 * low + high) / 4, (low + 3 * high) / 4
    a, b, c, error = 15 / 8, -10 / 8, 3 / 8, 0.0  # the limit, for an interval that is a point
    if high - low < 1e-5:
        return a, b, c, error
    for _ in range(50):
        rows = [[x, x**3, x**5, sign] for x, sign in ((low, 1), (first, -1), (second, 1), (high, -1))]
        a, b, c, error = np.linalg.solve(rows, np.ones(4)).tolist()
        root = sqrt(9 * b * b - 20 * a * c)
        first, second = sqrt((-3 * b - root) / (10 * c)), sqrt((-3 * b + root) / (10 * c))
    return a, b, c, error


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """The nearest matrices whose singular values are all 1, approximately.

    Args:
        matrices: (N, m, n), each for itself.
        iterations: 2 to 6; after more of them smaller singular values come near 1.

    Returns:
        (N, m, n). A matrix of zeros stays one.

    Source: Jordan et al., Muon, 2024, for the iteration; see `polynomials`.
    """
    x = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    tiny = torch.finfo(x.dtype).tiny
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + tiny)  # or the squares of small numbers would be zeros
    gram = x @ x.mT  # (N, m, m)
    # The Frobenius norm of x·xᵀ is at least the square of the largest singular value, and nearer to it than x's own.
    square = 1.01 * gram.flatten(1).norm(dim=1)[:, None, None] + tiny
    x, gram = x * square.rsqrt(), gram / square
    for i, (a, b, c) in enumerate(polynomials(iterations)):
        if i:
            gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if matrices.shape[1] <= matrices.shape[2] else x.mT


class Muon(Optimizer):
    """Three kinds of parameter groups: with `iterations` by Muon, with `betas` by AdamW, the others by Adagrad.

    Muon moves a matrix by its momentum, made orthogonal, so that all directions move alike; the step of a tall matrix
    is larger by √(m / n). Matrices of a shape are made orthogonal together, in bfloat16 where the hardware has it.
    Adagrad, with one sum of squares a row, moves the rows of a table that were looked up: for a row that is seen seldom
    it is as bold as on the first day.

    Source: Jordan et al., Muon, 2024; Duchi et al., 2011, for Adagrad; Mudigere et al., 2022, section 4.1.4, for rows.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [(p, p.grad) for p in group["params"] if p.grad is not None]
            if "iterations" in group:
                self._muon(moved, group)
            elif "betas" not in group:
                self._adagrad(moved, group)
            elif moved:
                self._adamw(moved, group)
        return loss

    def _muon(self, moved: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for p, grad in moved:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            state["momentum"].lerp_(grad, 1 - group["momentum"])
            shapes[p.shape].append((p, grad.lerp(state["momentum"], group["momentum"])))  # Nesterov's
        for (m, n), matrices in shapes.items():
            momenta = torch.stack([momentum for _, momentum in matrices])
            fast = momenta.bfloat16() if hardware.has_bf16(momenta.device.type) else momenta
            updates = orthogonalise(fast, group["iterations"]).to(momenta.dtype)
            for (p, _), update in zip(matrices, updates, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, m / n) ** 0.5)

    def _adagrad(self, moved: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        for p, sparse in moved:
            state = self.state[p]
            if not state:
                state["sum"] = p.new_zeros(len(p), 1)
            grad = sparse.coalesce()
            rows, values = grad.indices()[0], grad.values()
            squares = state["sum"][rows] + values.square().mean(dim=1, keepdim=True)
            state["sum"][rows] = squares
            p[rows] -= group["lr"] * values / (squares.sqrt() + group["eps"])

    def _adamw(self, moved: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        for p, _ in moved:
            if not self.state[p]:
                self.state[p]["step"] = torch.zeros((), device=p.device)
                self.state[p] |= {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
        states = [self.state[p] for p, _ in moved]
        beta1, beta2 = group["betas"]
        adamw(
            [p for p, _ in moved],
            [grad for _, grad in moved],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def muon(
    model: nn.Module,
    *,
    lr: float = 0.02,
    momentum: float = 0.95,
    iterations: int = 3,
    adamw_lr: float = 0.01,
    table_lr: float = 0.05,
    betas: Sequence[float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    eps: float = 1e-8,
) -> Muon:
    """Muon for the matrices inside the blocks; AdamW for embeddings, the head, norms and biases; Adagrad for tables.

    Args:
        model: whose trainable parameters are optimised.
        lr: the peak learning rate of the matrices in the blocks, which a schedule scales.
        momentum: share of the old in their running mean of gradients.
        iterations: of the orthogonalisation, 2 to 6.
        adamw_lr: the peak learning rate of embeddings, the head, norms and biases.
        table_lr: the peak learning rate of tables with sparse gradients.
        betas: decay rates of AdamW's first and second moment.
        weight_decay: per step, times the learning rate, of whatever is a matrix and no table.
        eps: added to the square roots of AdamW and Adagrad.

    Raises:
        ValueError: a value is out of its range.
    """
    for name, value in (("lr", lr), ("adamw_lr", adamw_lr), ("table_lr", table_lr)):
        if not 0 < value < inf:
            raise ValueError(f"{name} must be above 0 and finite, got {value}")
    if not 0 < eps < inf:
        raise ValueError(f"eps must be above 0 and finite, got {eps}")
    if not 0 <= weight_decay < inf:
        raise ValueError(f"weight_decay must be at least 0 and finite, got {weight_decay}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
    if iterations not in LOWEST:
        raise ValueError(f"iterations must be {min(LOWEST)} to {max(LOWEST)}, got {iterations}")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers of at least 0 and below 1, got {list(betas)}")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in named if name.startswith("blocks.") and p.dim() == 2]
    tables = sparse_tables(model)
    apart = {id(p) for p in (*hidden, *tables)}
    rest = [p for _, p in named if id(p) not in apart]
    by_muon = {"lr": lr, "momentum": momentum, "iterations": iterations, "weight_decay": weight_decay}
    # PyTorch takes a state that is loaded to the device of its parameter only for a group that says `fused`.
    by_adamw = {"lr": adamw_lr, "betas": tuple(betas), "eps": eps, "fused": True}
    return Muon(
        [
            {"name": "muon", "params": hidden, **by_muon},
            {"name": "adamw", "params": [p for p in rest if p.dim() >= 2], "weight_decay": weight_decay, **by_adamw},
            {"name": "adamw", "params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0, **by_adamw},
            {"name": "tables", "params": tables, "lr": table_lr, "eps": eps},
        ]
    )
