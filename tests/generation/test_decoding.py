from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LOOKUPS, small
from tinygpt.generation.decoding import Decoder
from tinygpt.generation.sampling import Sampling
from tinygpt.model import GPT


@pytest.fixture
def gpt(each_gpt: GPT) -> GPT:
    return each_gpt


def decode(gpt: GPT, *prompts: list[int], n: int = 12, greedy: bool = False, **settings) -> list[list[int]]:
    if greedy:
        settings["sampling"] = Sampling(temperature=0)
    decoder = Decoder(gpt, prompts, max_new_tokens=n, **settings)
    rows: list[list[int]] = [[] for _ in range(len(prompts) * settings.get("num_samples", 1))]
    for _ in range(n):
        for drawn in decoder.step():
            rows[drawn.row].append(drawn.token)
    return rows


def uncached(
    gpt: GPT, prompt: list[int], n: int, overflow: str, draw: Callable[[torch.Tensor], int] = lambda x: int(x.argmax())
) -> list[int]:
    """The slow, obvious version: the whole model on all that is seen, for each token; block_size is 8."""
    endless = overflow == "shift" and gpt.max_length > 8
    ids, begin = list(prompt), 0 if endless else max(0, len(prompt) - 8)
    for _ in range(n):
        if len(ids) - begin > 8 and not endless:
            if overflow == "stop":
                break
            begin = len(ids) - (8 if overflow == "crop" else 4)
        ids.append(draw(gpt(torch.tensor([ids[begin:]]))[0, -1]))
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


@pytest.mark.parametrize("overflow", ["shift", "crop", "stop"])
def test_where_every_layer_has_a_window_nothing_need_be_shifted(overflow):
    gpt = small("modern", window=[3, 2])
    lengths = []
    hook = gpt.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    together = decode(gpt, *PROMPTS, n=30, greedy=True, overflow=overflow)
    hook.remove()
    assert together == [uncached(gpt, prompt, 30, overflow) for prompt in PROMPTS]
    if overflow == "shift":
        assert lengths == [12, *[1] * 30]


CASES = {  # each with block_size 8
    "gpt2": small("gpt2"),
    "modern, windows, global": small("modern", window=[3, None], n_global=1),
    "modern, endless": small("modern", window=[2, 4]),
    "modern, global": small("modern", window=[2, 4], n_global=1),
    "gpt2, random": small("gpt2", window=2, n_random=1, random_block=2),
    "modern, lookups": small("modern", **LOOKUPS),
}


@settings(max_examples=80)
@given(
    case=st.sampled_from(sorted(CASES)),
    prompts=st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=12), min_size=1, max_size=4),
    num_samples=st.integers(1, 3),
    n=st.integers(1, 20),
    overflow=st.sampled_from(["shift", "crop", "stop"]),
    use_cache=st.booleans(),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    chunk=st.sampled_from([1, 3, 4096]),
    ends=st.dictionaries(st.integers(0, 11), st.integers(1, 20)),
)
def test_every_row_is_what_the_uncached_model_gives_alone(
    case, prompts, num_samples, n, overflow, use_cache, temperature, chunk, ends
):
    gpt, sampling = CASES[case], Sampling(temperature=temperature)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinygpt.generation.decoding.PREFILL", chunk)
        decoder = Decoder(
            gpt,
            prompts,
            max_new_tokens=n,
            num_samples=num_samples,
            sampling=sampling,
            overflow=overflow,
            seed=4,
            use_cache=use_cache,
        )
        rows: list[list[int]] = [[] for _ in range(len(prompts) * num_samples)]
        for step in range(1, n + 2):
            for drawn in decoder.step():
                rows[drawn.row].append(drawn.token)
            decoder.finish([row for row, end in ends.items() if end == step])
    for i, row in enumerate(rows):
        numbers = np.random.default_rng([4, i % num_samples])

        def draw(logits: torch.Tensor, numbers=numbers) -> int:
            return sampling.next_token(logits[None], [numbers.random()], [[]], [[]])[0]

        alone = uncached(gpt, prompts[i // num_samples], n, overflow, draw)
        assert row == alone[: ends.get(i)]


def test_samples_of_one_token_share_a_cache_that_holds_nothing_yet(gpt: GPT):
    rows = decode(gpt, [1], n=12, num_samples=3, greedy=True)
    assert rows == 3 * [uncached(gpt, [1], 12, "shift")]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gpt2", "modern, windows, global", "modern, endless", "modern, lookups"])
def test_a_compiled_step_is_compiled_once_and_gives_the_same_text(case: str):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    gpt = CASES[case]
    expected = [decode(gpt, *PROMPTS, n=20, greedy=True), decode(gpt, *PROMPTS[::-1], n=9, greedy=True)]
    assert decode(gpt, *PROMPTS, n=20, greedy=True, compiled=True) == expected[0]  # past block_size too
    assert decode(gpt, *PROMPTS[::-1], n=9, greedy=True, compiled=True) == expected[1]
    assert counters["stats"]["unique_graphs"] == 1
    decode(gpt, *[[1]] * 4, n=3, compiled=True)  # nothing to prefill
    assert counters["stats"]["unique_graphs"] == 1
    decode(gpt, [1, 2], n=3, compiled=True)  # another size of batch
    assert counters["stats"]["unique_graphs"] == 2


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


@pytest.mark.parametrize(
    ("prompts", "settings", "words"),
    [
        ([[1]], {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ([[1]], {"overflow": "slide"}, "overflow must be one of shift, crop, stop, got 'slide'"),
        ([[1]], {"compiled": True, "use_cache": False}, "a compiled step needs the cache"),
        ([[1], []], {}, "a prompt must have at least one token"),
    ],
)
def test_settings_out_of_range_are_refused(gpt: GPT, prompts, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Decoder(gpt, prompts, **{"max_new_tokens": 3} | settings)
