import pytest
import torch

from tinygpt.model import GPT2, Modern


def test_its_mlp_is_about_as_large_as_gpt2s():
    sizes = {"vocab_size": 67, "n_embd": 768, "n_head": 12}
    with torch.device("meta"):
        ours, theirs = (sum(p.numel() for p in f(**sizes).blocks[0].mlp.parameters()) for f in (Modern, GPT2))
    assert ours == 3 * 768 * 2048
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(("n_embd", "mlp_dim"), [(12, 32), (13, 64), (128, 352), (192, 512)])
def test_the_mlps_width_is_8_3_of_n_embd_up_to_a_multiple_of_32(n_embd: int, mlp_dim: int):
    assert Modern(vocab_size=11, n_head=1, n_embd=n_embd, head_dim=4).config["mlp_dim"] == mlp_dim


def test_config_says_what_null_stands_for():
    config = Modern(vocab_size=11).config
    assert (config["n_kv_head"], config["head_dim"], config["mlp_dim"]) == (4, 32, 352)


def test_flops_per_token_count_the_matrix_products():
    model = Modern(vocab_size=67, block_size=64, n_layer=3, n_head=4, n_kv_head=2, n_embd=48, head_dim=20, mlp_dim=100)
    attention = 48 * (4 + 2 + 2) * 20 + 4 * 20 * 48
    weights = 3 * (attention + 3 * 48 * 100) + 67 * 48
    assert model.flops_per_token() == 6 * weights + 12 * 3 * (4 * 20) * 64
    assert model.n_parameters() == weights + 67 * 48 + 3 * (2 * 48 + 2 * 20) + 48  # and the embedding, and the norms


def test_queries_and_keys_have_one_size_whatever_the_input():
    model = Modern(vocab_size=11, block_size=8, n_layer=1)
    seen = []
    attention = model.blocks[0].attention
    attention.kernel = lambda q, k, v, mask, dropout: seen.extend((q, k)) or v  # q and k have as many heads as v
    torch.nn.init.normal_(attention.qkv.weight, std=9.0)
    model(torch.randint(11, (2, 8)))
    for x in seen:  # normalised, then turned, which changes no length
        torch.testing.assert_close(x.square().mean(dim=-1), torch.ones(2, 4, 8))


def test_dropout_is_of_embeddings_and_branches_and_not_of_attention_weights():
    model = Modern(vocab_size=11, block_size=8, n_layer=2, dropout=0.5)
    seen = []
    for block in model.blocks:
        block.attention.kernel = lambda q, k, v, mask, dropout: seen.append(dropout) or v
    ids = torch.randint(11, (2, 8))
    assert not torch.equal(model(ids), model(ids))
    assert seen == [0.0] * 4


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"n_kv_head": 3}, "n_head must be a multiple of n_kv_head, got n_head=4, n_kv_head=3"),
        ({"n_kv_head": 0}, "n_kv_head must be at least 1, got 0"),
        ({"head_dim": 5}, "head_dim must be even, for rotary positions turn pairs, got 5"),
        ({"mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
        ({"rope_theta": 0.0}, "rope_theta must be above 0, got 0.0"),
        ({"norm_eps": -1e-6}, "norm_eps must be above 0, got -1e-06"),
    ],
)
def test_impossible_sizes_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Modern(**{"vocab_size": 11} | keywords)
