"""The matrix products of a model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # with more, PyTorch shares the work among the cores well enough
LARGE = 2**17  # weights; a smaller matrix stays in a core's cache, and to share it costs more than it saves


class Linear(nn.Linear):
    """x·Wᵀ + b, (..., in) → (..., out).

    A few rows against a large matrix, as in decoding, is a matter of reading the matrix. On a CPU PyTorch lets one core
    read it; here each reads a part. What that gains is in benchmarks/LOG.md.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        n = torch.get_num_threads()
        self.n_parts = n if in_features * out_features >= LARGE and out_features % n == 0 else 1

    def forward(self, x: Tensor) -> Tensor:
        n = self.n_parts
        rows = x.numel() // self.in_features
        if n == 1 or not 0 < rows <= ROWS or x.requires_grad or x.device.type != "cpu":
            return F.linear(x, self.weight, self.bias)
        if rows == 1 and torch.compiler.is_compiling():  # which would write the product out, in slow loops
            return F.linear(x, self.weight, self.bias)
        parts = self.weight.view(n, -1, self.in_features)
        columns = x.reshape(-1, self.in_features).t().expand(n, -1, -1)
        bias = None if self.bias is None else self.bias.view(n, -1, 1)
        y = torch.bmm(parts, columns) if bias is None else torch.baddbmm(bias, parts, columns)  # (n, out / n, rows)
        return y.view(self.out_features, -1).t().reshape(*x.shape[:-1], self.out_features)
