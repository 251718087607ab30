import pytest
import torch

from tinygpt.generation.cache import KVCache
from tinygpt.generation.decoding import generate
from tinygpt.model import GPT

NEVER = -1  # an end of text that no token is


@pytest.fixture
def gpt(each_gpt: GPT) -> GPT:
    return each_gpt


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_cached_logits_equal_uncached_ones(gpt: GPT, chunk: int):
    ids = torch.randint(11, (3, 8))
    cache = KVCache(gpt)
    pieces = [gpt(ids[:, i : i + chunk], cache=cache) for i in range(0, 8, chunk)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), gpt(ids), atol=1e-5, rtol=1e-5)
    assert cache.length == 8


def test_cached_logits_of_padded_rows_equal_the_rows_alone(gpt: GPT):
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    ids = torch.randint(11, (2, 6))
    cache = KVCache(gpt)
    gpt(ids[:, :4], padding=padding[:, :4], cache=cache)
    last = gpt(ids[:, 4:], padding=padding, cache=cache)
    torch.testing.assert_close(last[0], gpt(ids[:1, 2:])[0, 2:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last[1], gpt(ids[1:])[0, 4:], atol=1e-5, rtol=1e-5)


def test_cached_logits_of_packed_documents_equal_uncached_ones(gpt: GPT):
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2, 0]])
    ids = torch.randint(11, (2, 8))
    cache = KVCache(gpt)
    pieces = [gpt(ids[:, i : i + 1], documents=documents[:, : i + 1], cache=cache) for i in range(8)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), gpt(ids, documents=documents), atol=1e-5, rtol=1e-5)


def test_a_cached_token_that_changes_later_does_not_change_earlier_logits(gpt: GPT):
    ids = torch.randint(11, (1, 8))
    outputs = []
    for last in (0, 1):
        cache = KVCache(gpt)
        first = gpt(ids[:, :7], cache=cache)
        gpt(torch.full((1, 1), last), cache=cache)
        outputs.append(first)
    assert torch.equal(*outputs)


def test_a_cache_has_room_for_block_size_tokens(gpt: GPT):
    cache = KVCache(gpt)
    gpt(torch.zeros(1, 8, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="block_size=8 tokens at most, got 9"):
        gpt(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


def uncached_greedy(gpt: GPT, prompt: list[int], n: int) -> list[int]:
    """The slow, obvious version: the whole model on the last block_size tokens, for each token."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(gpt(torch.tensor([ids[-8:]]))[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3], list(range(8)), [i % 11 for i in range(13)]])
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_decoding_equals_the_uncached_model_also_past_block_size(gpt: GPT, prompt, use_cache: bool):
    rows = generate(gpt, torch.tensor(prompt), max_new_tokens=20, end_of_text=NEVER, temperature=0, use_cache=use_cache)
    assert rows == [uncached_greedy(gpt, prompt, 20)]


def sample(gpt: GPT, **settings) -> list[list[int]]:
    defaults = {"max_new_tokens": 12, "end_of_text": NEVER}
    return generate(gpt, torch.tensor([1, 2]), **defaults | settings)


def test_one_seed_is_one_text_whatever_else_is_sampled(gpt: GPT):
    five = sample(gpt, num_samples=5, seed=3)
    assert sample(gpt, num_samples=5, seed=3) == five
    assert sample(gpt, num_samples=2, seed=3) == five[:2]
    assert sample(gpt, num_samples=5, seed=4) != five
    assert sample(gpt, num_samples=5, seed=3, use_cache=False) == five
    assert sample(gpt, num_samples=5, seed=3, max_new_tokens=4) == [row[:4] for row in five]


def test_samples_of_one_prompt_differ_from_their_first_token_on(gpt: GPT):
    assert len({row[0] for row in sample(gpt, num_samples=20)}) > 3


def test_a_sample_ends_at_the_end_of_text_and_leaves_it_out(gpt: GPT):
    free = sample(gpt, num_samples=30)
    ended = sample(gpt, num_samples=30, end_of_text=5)
    assert ended == [row[: row.index(5)] if 5 in row else row for row in free]
    assert {len(row) for row in ended} > {12, 1}


def test_decoding_stops_when_every_sample_has_ended(gpt: GPT):
    calls = []
    hook = gpt.register_forward_hook(lambda *_: calls.append(1))
    greedy = uncached_greedy(gpt, [1, 2], 12)
    calls.clear()
    assert sample(gpt, num_samples=3, temperature=0, end_of_text=greedy[4]) == [greedy[: greedy.index(greedy[4])]] * 3
    assert len(calls) == greedy.index(greedy[4]) + 1
    hook.remove()


def test_the_cache_has_the_dtype_of_the_keys_also_under_autocast(gpt: GPT):
    caches = [KVCache(gpt), KVCache(gpt)]
    gpt(torch.zeros(1, 3, dtype=torch.int64), cache=caches[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gpt(torch.zeros(1, 3, dtype=torch.int64), cache=caches[1])
    assert [cache.layers[0].k.dtype for cache in caches] == [torch.float32, torch.bfloat16]
    assert [cache.layers[0].v.dtype for cache in caches] == [torch.float32, torch.bfloat16]
    attention = gpt.blocks[0].attention
    assert caches[0].layers[0].k.shape == (1, attention.n_kv_head, 8, attention.head_dim)
    assert (caches[0].layers[0].k[:, :, 3:] == 0).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(gpt: GPT, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        sample(gpt, **settings)
