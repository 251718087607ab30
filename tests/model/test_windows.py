"""What the layers of a model see: windows by layer, global tokens, random blocks; the same in every kernel."""

from typing import Any

import pytest
import torch

from tests.attention.kernels import TRAINABLE, configured
from tests.conftest import small
from tinygpt import checkpoint
from tinygpt.model import GPT


def reach(model: GPT, t: int) -> list[int]:
    """The tokens that the logits at t depend on, by their gradient."""
    inputs: list[torch.Tensor] = []
    hook = model.token_embedding.register_forward_hook(
        lambda module, args, output: inputs.append(output.detach().requires_grad_()) or inputs[-1]
    )
    logits = model(torch.arange(model.block_size)[None] % 11)
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), inputs)
    return gradient[0].abs().sum(dim=-1).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("sizes", "seen"),
    [
        ({"window": 1}, [9]),
        ({"window": 3}, [5, 6, 7, 8, 9]),  # two layers reach twice as far
        ({"window": 3, "n_layer": 3}, [3, 4, 5, 6, 7, 8, 9]),
        ({"window": [1, None]}, list(range(10))),
        ({"window": [2, 1], "n_layer": 3}, [7, 8, 9]),  # 2, 1, 2
        ({"window": 2, "n_global": 2}, [0, 1, 7, 8, 9]),
        ({"window": 10}, list(range(10))),
    ],
)
@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("family", ["gpt2", "modern"])
def test_a_token_depends_on_what_its_layers_see(family: str, name: str, sizes: dict[str, Any], seen: list[int]):
    assert reach(small(family, block_size=12, attention=configured(name), **sizes), 9) == seen


def test_random_blocks_are_other_ones_in_each_layer_and_the_same_in_a_copy():
    sizes = {"block_size": 64, "window": 1, "n_random": 1, "random_block": 2}
    one_layer = small("gpt2", n_layer=1, **sizes)
    seen = reach(one_layer, 61)
    assert len(seen) == 3  # itself, and a block
    assert seen[0] % 2 == 0
    assert seen[1] == seen[0] + 1
    model = small("gpt2", **sizes)
    assert model.random is not None
    assert not torch.equal(model.random[0], model.random[1])
    again = checkpoint.rebuild(checkpoint.describe(model))
    again.random.zero_()
    again.load_state_dict(model.state_dict())
    ids = torch.randint(11, (2, 64))
    assert torch.equal(again.eval()(ids), model(ids))


@pytest.mark.parametrize("sizes", [{"window": 8}, {"window": [20, None], "n_global": 3}])
def test_a_window_of_all_tokens_changes_nothing(sizes: dict[str, Any]):
    model = small("modern")
    windowed = small("modern", **sizes)
    windowed.load_state_dict(model.state_dict())
    ids = torch.randint(11, (2, 8))
    torch.testing.assert_close(windowed(ids), model(ids))


def test_a_window_costs_less():
    full, half = small("gpt2", block_size=16), small("gpt2", block_size=16, window=[4, None], n_global=1)
    assert full.flops_per_token() - half.flops_per_token() == 12 * 16 * (16 - 5)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"window": 0}, "window must be at least 1, or null for all tokens, got 0"),
        ({"window": [4, -1]}, r"window must be at least 1, or null for all tokens, got \[4, -1\]"),
        ({"window": []}, "window must have 1 to n_layer=2 entries, got 0"),
        ({"n_global": -1}, "n_global must be at least 0, got -1"),
        ({"n_global": 2}, "n_global adds to what a window lets a token see; set window too, or n_global=0"),
        ({"n_random": 2, "window": [None]}, "n_random adds to what a window lets a token see; set window too"),
        ({"window": 2, "n_random": 1, "random_block": 0}, "random_block must be at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("family", ["gpt2", "modern"])
def test_impossible_windows_are_refused(family: str, sizes: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        small(family, **sizes)
