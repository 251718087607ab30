from math import log, sqrt

import pytest
import torch

from tinygpt.attention import SDPA
from tinygpt.model import GPT2, next_token_loss


def test_parameters_are_those_of_gpt2_small():
    with torch.device("meta"):
        model = GPT2(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    assert model.n_parameters() == 124_439_808


@pytest.mark.parametrize("init", ["gpt2", "xavier"])
@pytest.mark.parametrize(
    ("vocab_size", "sizes"),
    [(67, {}), (257, {}), (50257, {"n_embd": 768, "n_head": 12, "n_layer": 2}), (67, {"tie_embeddings": False})],
)
def test_a_fresh_model_knows_nothing(vocab_size: int, sizes: dict, init):
    """Its first loss is ln V within 2 %."""
    model = GPT2(vocab_size=vocab_size, block_size=32, init=init, **sizes)
    ids = torch.randint(vocab_size, (8, 33))
    loss = next_token_loss(model(ids[:, :-1]), ids[:, 1:]).item()
    assert loss == pytest.approx(log(vocab_size), rel=0.02)


def test_gpt2_initialisation_scales_residual_projections_by_depth():
    model = GPT2(vocab_size=67, n_layer=8, n_embd=128, init="gpt2")
    for block in model.blocks:
        assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
        for projection in (block.attention.proj, block.mlp.proj):
            assert projection.weight.std().item() == pytest.approx(0.02 / sqrt(16), rel=0.05)
            assert (projection.bias == 0).all()
    assert model.token_embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_xavier_initialisation_scales_by_fan_in_and_fan_out():
    model = GPT2(vocab_size=67, n_embd=128, init="xavier")
    for block in model.blocks:
        assert block.mlp.fc.weight.std().item() == pytest.approx(sqrt(2 / (128 + 512)), rel=0.05)
        assert block.attention.proj.weight.std().item() == pytest.approx(sqrt(2 / (128 + 128)), rel=0.05)


@pytest.mark.parametrize("tie", [True, False])
def test_tied_embeddings_are_one_tensor(tie: bool):
    model = GPT2(vocab_size=67, tie_embeddings=tie)
    assert (model.head.weight is model.token_embedding.weight) == tie
    assert model.n_parameters() == 810_112 + 64 * 128 + (0 if tie else 67 * 128)


def test_config_builds_the_same_model_again():
    model = GPT2(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, attention=SDPA())
    again = GPT2(**model.config)
    again.load_state_dict(model.state_dict())
    assert again.config == model.config


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"n_embd": 32, "n_head": 5}, "n_embd must be a multiple of n_head, got n_embd=32, n_head=5"),
        ({"n_layer": 0}, "n_layer must be at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size must be at least 1, got -1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"init": "kaiming"}, "init must be one of gpt2, xavier, got 'kaiming'"),
    ],
)
def test_impossible_sizes_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        GPT2(**{"vocab_size": 11} | keywords)
