"""Cached logits are uncached ones: in chunks, in rows of any lengths, and past every window."""

import pytest
import torch

from tests.conftest import small
from tinygpt.attention import Manual
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.sliding_window import SlidingWindow
from tinygpt.generation.cache import KVCache
from tinygpt.model import GPT


@pytest.fixture
def gpt(each_gpt: GPT) -> GPT:
    return each_gpt


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_cached_logits_equal_uncached_ones(gpt: GPT, chunk: int):
    ids = torch.randint(11, (3, 8))
    cache = KVCache(gpt)
    pieces = [gpt(ids[:, i : i + chunk], cache=cache) for i in range(0, 8, chunk)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), gpt(ids), atol=1e-5, rtol=1e-5)
    assert cache.lengths == [8, 8, 8]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_cached_logits_of_rows_of_any_lengths_equal_the_rows_alone(gpt: GPT, chunk: int):
    lengths = [3, 5, 1]
    ids = torch.randint(11, (3, 8))
    cache = KVCache(gpt)
    found: list[list[torch.Tensor]] = [[], [], []]
    for i in range(0, 5, chunk):  # what is behind a row's end is anything
        padding = torch.tensor([[place < length for place in range(i, min(i + chunk, 5))] for length in lengths])
        logits = gpt(ids[:, i : min(i + chunk, 5)], padding=padding, cache=cache)
        for row, real, of in zip(found, padding, logits, strict=True):
            row.extend(of[real])
    assert cache.lengths == lengths
    for step in range(3):
        at = torch.tensor(cache.lengths)
        logits = gpt(ids[torch.arange(3), at][:, None], cache=cache)
        for row, of in zip(found, logits, strict=True):
            row.append(of[0])
        assert cache.lengths == [length + step + 1 for length in lengths]
    for row, alone, length in zip(found, ids, lengths, strict=True):
        torch.testing.assert_close(torch.stack(row), gpt(alone[None, : length + 3])[0], atol=1e-5, rtol=1e-5)


def test_what_a_cache_cannot_take_is_refused(gpt: GPT):
    cache = KVCache(gpt)
    ids = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="padding must lie behind a row's tokens"):
        gpt(ids, padding=torch.tensor([[True, True], [False, True]]), cache=cache)
    with pytest.raises(ValueError, match="each row is one document"):
        gpt(ids, documents=ids, cache=cache)
    gpt(ids, padding=torch.tensor([[True, True], [True, False]]), cache=cache)
    with pytest.raises(ValueError, match="rows of different lengths take one token at a time, got 2"):
        gpt(ids, cache=cache)
    with pytest.raises(ValueError, match="rows of different lengths take one token at a time, got 2"):
        gpt(ids, padding=torch.tensor([[True, True], [True, False]]), cache=cache)


def test_a_cache_has_room_for_block_size_tokens(gpt: GPT):
    cache = KVCache(gpt)
    gpt(torch.zeros(1, 8, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="room for 8 tokens, got 9"):
        gpt(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


def test_the_cache_has_the_dtype_of_the_keys_also_under_autocast(gpt: GPT):
    caches = [KVCache(gpt), KVCache(gpt)]
    gpt(torch.zeros(1, 3, dtype=torch.int64), cache=caches[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gpt(torch.zeros(1, 3, dtype=torch.int64), cache=caches[1])
    assert [cache.layers[0].k.dtype for cache in caches] == [torch.float32, torch.bfloat16]
    assert [cache.layers[0].v.dtype for cache in caches] == [torch.float32, torch.bfloat16]
    attention = gpt.blocks[0].attention
    layer = caches[0].layers[0]
    assert layer.k.shape == (1, attention.n_kv_head, layer.slots.count, attention.head_dim)
    assert (caches[0].layers[0].k[:, :, 3:] == 0).all()


ENDLESS = {
    "window": {"window": 3},
    "a window of one": {"window": 1},
    "windows": {"window": [4, 2]},
    "of block_size": {"window": 8},
    "manual": {"window": [3, 5], "attention": Manual()},
    "chunked": {"window": 3, "attention": Chunked(strip=2)},
    "sliding window": {"window": 3, "n_kv_head": 1, "attention": SlidingWindow(block=2)},
}


@pytest.fixture(params=ENDLESS)
def endless(request: pytest.FixtureRequest) -> GPT:
    """A model that sees a part in every layer, so that block_size, 8, is no limit to it."""
    return small("modern", **ENDLESS[request.param])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 30])
def test_where_every_layer_has_a_window_cached_logits_equal_uncached_ones_for_ever(endless: GPT, chunk: int):
    ids = torch.randint(11, (2, 30))
    cache = KVCache(endless)
    pieces = [endless(ids[:, i : i + chunk], cache=cache) for i in range(0, 30, chunk)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), endless(ids), atol=1e-5, rtol=1e-5)
    for layer, window in zip(cache.layers, endless.windows, strict=True):
        assert layer.k.shape[2] == window  # whatever the length


@pytest.mark.parametrize("chunk", [1, 2, 5, 13])
def test_rows_of_any_lengths_go_on_for_ever_as_each_does_alone(endless: GPT, chunk: int):
    lengths, widest = [3, 13, 1, 8], 13
    ids = torch.randint(11, (4, 24))
    cache = KVCache(endless)
    for i in range(0, widest, chunk):
        T = min(chunk, widest - i)
        padding = torch.arange(i, i + T) < torch.tensor(lengths)[:, None]
        endless(ids[:, i : i + T], padding=padding, cache=cache)
    for _ in range(11):
        at = torch.tensor(cache.lengths)
        logits = endless(ids[torch.arange(4), at][:, None], cache=cache)
        for row, alone, n in zip(logits, ids, cache.lengths, strict=True):
            torch.testing.assert_close(row, endless(alone[None, :n])[0, -1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gpt2", {"window": 3}),  # learned positions
        ("modern", {"window": [3, None]}),
        ("modern", {"window": 9}),
        ("modern", {"window": 3, "n_random": 1}),
        ("modern", {"window": 3, "n_global": 1}),
    ],
)
def test_every_other_model_ends_at_block_size(family: str, sizes: dict):
    gpt = small(family, **sizes)
    assert gpt.max_length == 8
    ids = torch.zeros(1, 9, dtype=torch.int64)
    with pytest.raises(ValueError, match="block_size=8 tokens at most, got 9"):
        gpt(ids)
    with pytest.raises(ValueError, match="room for 8 tokens, got 9"):
        gpt(ids, cache=KVCache(gpt))
    cache = KVCache(gpt)
    gpt(ids[:, :8], cache=cache)
    with pytest.raises(ValueError, match="room for 8 tokens, got 9"):
        gpt(ids[:, 8:], cache=cache)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("kernel", [None, Manual(), Chunked(strip=2), SlidingWindow(block=2)])
def test_global_tokens_stay_where_the_others_take_turns(chunk: int, kernel):
    gpt = small("modern", block_size=24, window=[3, 5], n_global=2, attention=kernel)
    ids, lengths = torch.randint(11, (3, 24)), torch.tensor([15, 1, 6])
    cache = KVCache(gpt)
    for i in range(0, 15, chunk):
        padding = torch.arange(i, i + chunk) < lengths[:, None]
        gpt(ids[:, i : i + chunk], padding=padding, cache=cache)
    assert [layer.k.shape[2] for layer in cache.layers] == [5, 7]
    for _ in range(9):
        at = torch.tensor(cache.lengths)
        logits = gpt(ids[torch.arange(3), at][:, None], cache=cache)
        for row, alone, n in zip(logits, ids, cache.lengths, strict=True):
            torch.testing.assert_close(row, gpt(alone[None, :n])[0, -1:], atol=1e-5, rtol=1e-5)


def test_a_cache_with_too_little_room_for_a_window_does_not_forget():
    gpt = small("modern", window=5)
    cache = KVCache(gpt, capacity=4)
    gpt(torch.zeros(1, 4, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="room for 4 tokens, got 5"):
        gpt(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


def test_rows_are_chosen_repeated_and_replaced(gpt: GPT):
    ids = torch.randint(11, (3, 6))
    cache, other = KVCache(gpt), KVCache(gpt)
    gpt(ids[:, :4], cache=cache)
    cache.select([2, 0, 2])
    gpt(ids[1:2, :2], cache=other)
    cache.put([1], other)
    assert cache.lengths == [4, 2, 4]
    logits = gpt(torch.tensor([[1], [2], [3]]), cache=cache)
    for row, seen, token in zip(logits, (ids[2, :4], ids[1, :2], ids[2, :4]), (1, 2, 3), strict=True):
        alone = gpt(torch.cat([seen, torch.tensor([token])])[None])[0, -1:]
        torch.testing.assert_close(row, alone, atol=1e-5, rtol=1e-5)


def test_captured_steps_give_the_same_logits(gpt: GPT):
    ids = torch.randint(11, (2, 8))
    cache = KVCache(gpt)
    gpt(ids[:, :3], padding=torch.tensor([[True] * 3, [True, True, False]]), cache=cache)
    cache.capture()
    for _ in range(4):
        at = torch.tensor(cache.lengths)
        logits = gpt(ids[torch.arange(2), at][:, None], cache=cache)
        cache.advance()
        for row, alone, n in zip(logits, ids, cache.lengths, strict=True):
            torch.testing.assert_close(row, gpt(alone[None, :n])[0, -1:], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="a captured cache takes one token a row, got 2"):
        gpt(ids[:, :2], cache=cache)
    cache.select([1])
    logits = gpt(ids[1:, cache.lengths[0]][:, None], cache=cache)
    cache.advance()
    torch.testing.assert_close(logits, gpt(ids[1:, : cache.lengths[0]])[:, -1:], atol=1e-5, rtol=1e-5)
    cache.advance()
    with pytest.raises(ValueError, match="room for 8 tokens, got 9"):
        cache.advance()
