"""Weights of 8 bits."""

import pytest
import torch
from torch import nn

from tinygpt.model import GPT
from tinygpt.model.int8 import Int8Linear, quantize


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_off_by_half_a_step_at_most(bias: bool):
    linear = nn.Linear(16, 4, bias=bias)
    with torch.no_grad():
        linear.weight[1] *= 1000  # each row has steps of its own
        linear.weight[2] = 0
    ours = Int8Linear(linear)
    found = ours(torch.eye(16)) - (linear.bias if bias else 0)  # (in, out)
    step = linear.weight.abs().amax(dim=1) / 127
    assert ((found.T - linear.weight).abs() <= 0.5001 * step[:, None]).all()
    assert ours.weight.dtype == torch.int8
    assert ours.weight[1].abs().max() == 127
    assert ours(torch.zeros(3, 5, 16)).shape == (3, 5, 4)


def test_a_model_takes_a_quarter_and_says_almost_the_same(each_gpt: GPT):
    ids = torch.randint(11, (2, 8))
    expected = each_gpt(ids).log_softmax(dim=-1)
    tied = each_gpt.head.weight is each_gpt.token_embedding.weight
    floats = sum(m.weight.numel() for m in each_gpt.modules() if isinstance(m, nn.Linear))
    floats -= each_gpt.head.weight.numel() if tied else 0
    rows = sum(m.weight.shape[0] for m in each_gpt.modules() if isinstance(m, nn.Linear))
    rows -= each_gpt.head.weight.shape[0] if tied else 0
    before, after = quantize(each_gpt)
    assert before - after == 3 * floats - 4 * rows  # a byte instead of four, and a scale for each row
    assert isinstance(each_gpt.head, nn.Linear) == tied
    found = each_gpt(ids).log_softmax(dim=-1)
    assert not torch.equal(found, expected)
    assert (found - expected).abs().mean() < 0.05


def test_a_cache_goes_with_it(each_gpt: GPT):
    from tinygpt.generation.cache import KVCache

    quantize(each_gpt)
    ids = torch.randint(11, (2, 8))
    cache = KVCache(each_gpt)
    pieces = [each_gpt(ids[:, i : i + 1], cache=cache) for i in range(8)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), each_gpt(ids), atol=1e-5, rtol=1e-5)
