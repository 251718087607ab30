import pytest
import torch

from tinygpt.attention import SDPA, Mask, SelfAttention


def test_the_projections_are_n_embd_by_n_embd_for_each_of_q_k_and_v():
    attention = SelfAttention(16, 4, kernel=SDPA(), bias=False)
    assert sum(p.numel() for p in attention.parameters()) == 4 * 16 * 16


def test_heads_differ():
    attention = SelfAttention(16, 4, kernel=SDPA())
    attention.proj = torch.nn.Identity()  # type: ignore[assignment]
    heads = attention(torch.randn(1, 5, 16), Mask()).view(5, 4, 4)
    assert not any(torch.allclose(heads[:, 0], heads[:, i]) for i in (1, 2, 3))


def test_output_ignores_future_tokens():
    attention = SelfAttention(16, 4, kernel=SDPA())
    x = torch.randn(2, 8, 16)
    changed = x.clone()
    changed[:, 5:] += 1.0
    torch.testing.assert_close(attention(changed, Mask())[:, :5], attention(x, Mask())[:, :5])
    assert not torch.allclose(attention(changed, Mask())[:, 5:], attention(x, Mask())[:, 5:])


@pytest.mark.parametrize("of", ["attention_dropout", "dropout"])
def test_dropout_acts_in_training_and_never_in_evaluation(of: str):
    attention = SelfAttention(16, 4, kernel=SDPA(), **{of: 0.5})
    x = torch.randn(2, 8, 16)
    assert not torch.equal(attention(x, Mask()), attention(x, Mask()))
    attention.eval()
    assert torch.equal(attention(x, Mask()), attention(x, Mask()))


def test_heads_that_do_not_divide_are_named_with_both_numbers():
    with pytest.raises(ValueError, match="n_embd must be a multiple of n_head, got n_embd=32, n_head=5"):
        SelfAttention(32, 5, kernel=SDPA())


def test_heads_of_keys_and_values_may_be_fewer_and_heads_of_a_size_of_their_own():
    attention = SelfAttention(16, 4, n_kv_head=2, head_dim=6, kernel=SDPA(), bias=False)
    assert attention.qkv.weight.shape == ((4 + 2 + 2) * 6, 16)
    assert attention.proj.weight.shape == (16, 4 * 6)
    assert attention(torch.randn(2, 5, 16), Mask()).shape == (2, 5, 16)


def test_shared_heads_equal_heads_that_hold_the_same():
    shared = SelfAttention(16, 4, n_kv_head=2, kernel=SDPA())
    repeated = SelfAttention(16, 4, kernel=SDPA())
    q, k, v = shared.qkv.weight.split([16, 8, 8])
    twice = [x.unflatten(0, (2, 1, 4)).expand(2, 2, 4, 16).flatten(0, 2) for x in (k, v)]  # neighbours share
    torch.nn.init.zeros_(shared.qkv.bias)
    state = shared.state_dict() | {"qkv.weight": torch.cat([q, *twice]), "qkv.bias": torch.zeros(48)}
    repeated.load_state_dict(state)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(shared(x, Mask()), repeated(x, Mask()))


def test_heads_that_cannot_be_shared_evenly_are_named_with_both_numbers():
    with pytest.raises(ValueError, match="n_head must be a multiple of n_kv_head, got n_head=4, n_kv_head=3"):
        SelfAttention(16, 4, n_kv_head=3, kernel=SDPA())
