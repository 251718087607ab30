from math import sqrt

import pytest
import torch

from tinygpt.attention.masks import Mask
from tinygpt.model import GPT2


def test_parameters_are_those_of_gpt2_small():
    with torch.device("meta"):
        model = GPT2(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    assert model.n_parameters() == 124_439_808


def test_gpt2_initialisation_scales_residual_projections_by_depth():
    model = GPT2(vocab_size=67, n_layer=8, n_embd=128, init="gpt2")
    for block in model.blocks:
        assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
        for projection in (block.attention.proj, block.mlp.proj):
            assert projection.weight.std().item() == pytest.approx(0.02 / sqrt(16), rel=0.05)
            assert (projection.bias == 0).all()
    assert model.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_zero_initialisation_adds_blocks_that_do_nothing():
    model = GPT2(vocab_size=67, n_embd=128, init="zero", tie_embeddings=False)
    ids = torch.randint(67, (2, 8))
    assert not model(ids).any()
    x, _ = model.positions(model.token_embedding(ids), torch.arange(8))
    assert torch.equal(model.blocks[0](x, Mask()), x)
    fc = model.blocks[0].mlp.fc.weight
    assert fc.std().item() == pytest.approx((2 / (128 + 512)) ** 0.5, rel=0.05)


def test_xavier_initialisation_scales_by_fan_in_and_fan_out():
    model = GPT2(vocab_size=67, n_embd=128, init="xavier")
    for block in model.blocks:
        assert block.mlp.fc.weight.std().item() == pytest.approx(sqrt(2 / (128 + 512)), rel=0.05)
        assert block.attention.proj.weight.std().item() == pytest.approx(sqrt(2 / (128 + 128)), rel=0.05)


def test_flops_per_token_count_the_matrix_products():
    model = GPT2(vocab_size=67, block_size=64, n_layer=4, n_embd=128)
    weights = 4 * 12 * 128 * 128 + 67 * 128  # the blocks' matrices and the head
    assert model.flops_per_token() == 6 * weights + 12 * 4 * 128 * 64
