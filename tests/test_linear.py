"""A matrix that is read in parts, by each core one."""

import pytest
import torch
import torch.nn.functional as F

from tinygpt.linear import LARGE, ROWS, Linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_parts", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (3, 5), (ROWS,), (ROWS + 1,)])
def test_the_product_is_the_same_in_parts(bias: bool, n_parts: int, shape: tuple[int, ...]):
    layer = Linear(64, 30, bias)
    layer.n_parts = n_parts
    x = torch.randn(*shape, 64)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    columns = torch.randn(64, *shape).movedim(0, -1)  # not contiguous
    torch.testing.assert_close(layer(columns), F.linear(columns, layer.weight, layer.bias))


def test_no_row_gives_no_row():
    layer = Linear(64, 30)
    layer.n_parts = 2
    assert layer(torch.zeros(0, 3, 64)).shape == (0, 3, 30)


def test_large_matrices_alone_have_a_part_for_each_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert Linear(LARGE // 2, 2).n_parts == 2
    assert Linear(LARGE // 2 - 1, 2).n_parts == 1
    assert Linear(LARGE, 3).n_parts == 1  # not to be halved


def test_derivatives_are_those_of_the_whole():
    layer, x = Linear(64, 30), torch.randn(2, 64)
    layer.n_parts = 2
    layer(x).square().sum().backward()
    ours = [layer.weight.grad, layer.bias.grad]
    layer.zero_grad()
    F.linear(x, layer.weight, layer.bias).square().sum().backward()
    torch.testing.assert_close(ours, [layer.weight.grad, layer.bias.grad])
