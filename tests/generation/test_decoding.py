import pytest
import torch

from tinygpt.generation.cache import KVCache
from tinygpt.generation.decoding import Decoder
from tinygpt.generation.sampling import Sampling
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
    with pytest.raises(ValueError, match="room for 8 tokens, got 9"):
        gpt(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


def decode(gpt: GPT, *prompts: list[int], n: int = 12, greedy: bool = False, **settings) -> list[list[int]]:
    if greedy:
        settings["sampling"] = Sampling(temperature=0)
    decoder = Decoder(gpt, prompts, max_new_tokens=n, **settings)
    rows: list[list[int]] = [[] for _ in range(len(prompts) * settings.get("num_samples", 1))]
    for _ in range(n):
        for drawn in decoder.step():
            rows[drawn.row].append(drawn.token)
    return rows


def uncached(gpt: GPT, prompt: list[int], n: int, overflow: str) -> list[int]:
    """The slow, obvious version: the whole model on all that is seen, for each token; block_size is 8."""
    ids, begin = list(prompt), max(0, len(prompt) - 8)
    for _ in range(n):
        if len(ids) - begin > 8:
            if overflow == "stop":
                break
            begin = len(ids) - (8 if overflow == "crop" else 4)
        ids.append(int(gpt(torch.tensor([ids[begin:]]))[0, -1].argmax()))
    return ids[len(prompt) :]


PROMPTS = [[1], [1, 2, 3], list(range(8)), [i % 11 for i in range(13)]]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("overflow", ["shift", "crop", "stop"])
def test_greedy_decoding_equals_the_uncached_model_also_past_block_size(gpt: GPT, overflow, use_cache: bool):
    for prompt in PROMPTS:
        rows = decode(gpt, prompt, n=20, greedy=True, overflow=overflow, use_cache=use_cache)
        assert rows == [uncached(gpt, prompt, 20, overflow)]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("overflow", ["shift", "crop", "stop"])
def test_prompts_of_any_lengths_together_give_what_each_gives_alone(gpt: GPT, overflow, use_cache: bool):
    together = decode(gpt, *PROMPTS, n=20, greedy=True, overflow=overflow, use_cache=use_cache)
    assert together == [uncached(gpt, prompt, 20, overflow) for prompt in PROMPTS]


def test_shifting_costs_a_prefill_in_half_a_window_and_a_token_otherwise(gpt: GPT):
    lengths = []
    hook = gpt.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    decode(gpt, [1, 2, 3], n=20)
    hook.remove()
    assert lengths == [2, 1, 1, 1, 1, 1, 1, *[3, 1, 1, 1, 1, 1] * 2, 3, 1, 1, 1, 1]


def test_samples_of_a_prompt_share_its_prefill(gpt: GPT):
    shapes = []
    hook = gpt.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    decode(gpt, [1, 2, 3], [4, 5], n=2, num_samples=5)
    hook.remove()
    assert shapes == [(2, 2), (10, 1), (10, 1)]


def test_a_row_that_has_ended_soon_costs_nothing_and_changes_no_other(gpt: GPT):
    alone = [uncached(gpt, prompt, 12, "shift") for prompt in PROMPTS]
    decoder = Decoder(gpt, PROMPTS, max_new_tokens=12, sampling=Sampling(temperature=0))
    rows: list[list[int]] = [[] for _ in PROMPTS]
    shapes: list[int] = []  # rows of each step that is not a prefill
    hook = gpt.register_forward_pre_hook(lambda _, args: shapes.extend(args[0].shape[:1] * (args[0].shape[1] == 1)))
    for i in range(12):
        for drawn in decoder.step():
            rows[drawn.row].append(drawn.token)
        if i in (2, 5, 8):
            decoder.finish([{2: 3, 5: 1, 8: 2}[i]])
    hook.remove()
    assert rows == [alone[0], alone[1][:6], alone[2][:9], alone[3][:3]]
    running = [4] * 3 + [3] * 3 + [2] * 3 + [1] * 3
    assert all(n <= size < 2 * n or size == n for n, size in zip(running, shapes, strict=True))
    assert shapes[9:] == [1] * 3


def test_a_full_row_is_named(gpt: GPT):
    decoder = Decoder(gpt, [[1, 2], list(range(8))], max_new_tokens=9, overflow="stop")
    assert [drawn.row for drawn in decoder.step()] == [0, 1]
    assert decoder.full == set()
    assert [drawn.row for drawn in decoder.step()] == [0]
    assert decoder.full == {1}


def test_one_seed_is_one_text_whatever_else_is_sampled(gpt: GPT):
    five = decode(gpt, [1, 2], num_samples=5, seed=3)
    assert decode(gpt, [1, 2], num_samples=5, seed=3) == five
    assert decode(gpt, [1, 2], num_samples=2, seed=3) == five[:2]
    assert decode(gpt, [1, 2], num_samples=5, seed=4) != five
    assert decode(gpt, [1, 2], num_samples=5, seed=3, use_cache=False) == five
    assert decode(gpt, [5], [1, 2], [1, 2, 3], seed=3)[1] == five[0]


def test_samples_of_one_prompt_differ_from_their_first_token_on(gpt: GPT):
    assert len({row[0] for row in decode(gpt, [1, 2], num_samples=20)}) > 3


def test_log_probabilities_are_the_models_own_whatever_the_sampling(gpt: GPT):
    sampling = Sampling(temperature=0.3, top_k=3, repetition_penalty=1.4)
    decoder = Decoder(gpt, [[1, 2, 3]], max_new_tokens=4, sampling=sampling, n_top=4)
    ids = [1, 2, 3]
    for _ in range(4):
        (drawn,) = decoder.step()
        logprobs = gpt(torch.tensor([ids]))[0, -1].log_softmax(dim=-1)
        assert drawn.logprob == pytest.approx(logprobs[drawn.token].item(), abs=1e-5)
        best = logprobs.topk(4)
        assert [token for token, _ in drawn.top] == best.indices.tolist()
        assert [logprob for _, logprob in drawn.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        ids.append(drawn.token)


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


@pytest.mark.parametrize(
    ("prompts", "settings", "words"),
    [
        ([[1]], {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ([[1], []], {}, "a prompt must have at least one token"),
    ],
)
def test_settings_out_of_range_are_refused(gpt: GPT, prompts, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Decoder(gpt, prompts, **{"max_new_tokens": 3} | settings)
