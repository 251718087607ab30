"""What every family's constructor must do: sizes, initialisation, tying, the configuration that it keeps."""

from math import log

import pytest
import torch

from tinygpt.attention import SDPA
from tinygpt.model import GPT, GPT2, Modern, next_token_loss


@pytest.mark.parametrize("family", [GPT2, Modern])
@pytest.mark.parametrize("init", ["gpt2", "xavier"])
@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize(
    ("vocab_size", "sizes"), [(67, {}), (257, {}), (50257, {"n_embd": 768, "n_head": 12, "n_layer": 2})]
)
def test_a_fresh_model_knows_nothing(vocab_size: int, sizes: dict, tie_embeddings: bool, init, family: type[GPT]):
    """Its first loss is ln V within 2 %."""
    model = family(vocab_size=vocab_size, block_size=32, tie_embeddings=tie_embeddings, init=init, **sizes)
    ids = torch.randint(vocab_size, (8, 33))
    loss = next_token_loss(model(ids[:, :-1]), ids[:, 1:]).item()
    assert loss == pytest.approx(log(vocab_size), rel=0.02)


@pytest.mark.parametrize("tie", [True, False])
def test_tied_embeddings_are_one_tensor(each_gpt: GPT, tie: bool):
    model = type(each_gpt)(**each_gpt.config | {"tie_embeddings": tie})
    untied = type(each_gpt)(**each_gpt.config | {"tie_embeddings": False})
    assert (model.head.weight is model.token_embedding.weight) == tie
    assert untied.n_parameters() - model.n_parameters() == (11 * 16 if tie else 0)


def test_config_builds_the_same_model_again(each_gpt: GPT):
    again = type(each_gpt)(**each_gpt.config)
    again.load_state_dict(each_gpt.state_dict())
    assert again.config == each_gpt.config
    assert type(each_gpt)(vocab_size=11).config["attention"] == SDPA()
    ids = torch.randint(11, (2, 8))
    assert torch.equal(again.eval()(ids), each_gpt(ids))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"n_embd": 32, "n_head": 5}, "n_embd must be a multiple of n_head, got n_embd=32, n_head=5"),
        ({"n_layer": 0}, "n_layer must be at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size must be at least 1, got -1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"init": "kaiming"}, "init must be one of gpt2, xavier, zero, got 'kaiming'"),
    ],
)
@pytest.mark.parametrize("family", [GPT2, Modern])
def test_impossible_sizes_are_refused(family: type[GPT], keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        family(**{"vocab_size": 11} | keywords)
