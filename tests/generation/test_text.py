"""Text in, text out: stops, ends, lengths, and text as it comes."""

import pytest
import torch

from tests.conftest import small
from tinygpt.errors import UserError
from tinygpt.generation.text import TextGenerator
from tinygpt.tokenizers import ByteTokenizer, CharTokenizer

ENDLESS = {9: -float("inf"), 10: -float("inf")}  # without the end of a text and the unknown


@pytest.fixture
def gpt() -> TextGenerator:
    tokenizer = CharTokenizer("abcdefghi")
    return TextGenerator(small("modern", vocab_size=tokenizer.vocab_size, block_size=16), tokenizer)


def test_a_stop_ends_a_sample_before_it_and_streaming_shows_the_same(gpt: TextGenerator):
    (free,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=40)
    assert (len(free.text), free.finish_reason) == (40, "length")
    for start, length in ((0, 1), (3, 2), (10, 5), (30, 3)):
        stop = free.text[start : start + length]
        (sample,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=40, stop=["no such text", stop])
        assert sample.text == free.text[: free.text.index(stop)]
        assert sample.finish_reason == "stop"
        assert sample.tokens == free.tokens[: free.text.index(stop) + length]
        pieces = list(gpt.stream(["abc"], logit_bias=ENDLESS, max_new_tokens=40, stop=[stop]))
        assert "".join(piece.text for piece in pieces) == sample.text
    assert gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=40, stop=["xyz"])[0] == free


def test_a_string_is_one_stop_and_one_prompt(gpt: TextGenerator):
    settings = {"logit_bias": ENDLESS, "max_new_tokens": 40}
    (free,) = gpt.complete("abc", **settings)
    assert gpt.complete(iter(["abc"]), **settings) == [free]
    stop = free.text[3:5]
    assert gpt.complete("abc", stop=stop, **settings)[0].text == free.text[: free.text.index(stop)]


def test_text_that_only_begins_like_a_stop_is_shown_at_the_end(gpt: TextGenerator):
    (free,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=12)
    (sample,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=12, stop=[free.text[-3:] + "z"])
    assert (sample.text, sample.finish_reason) == (free.text, "length")


def test_an_id_ends_a_sample_and_its_text_is_left_out(gpt: TextGenerator):
    (free,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=40)
    token = free.tokens[7]
    (sample,) = gpt.complete(["abc"], logit_bias=ENDLESS, max_new_tokens=40, stop_ids=[token, 10])
    assert sample.finish_reason == "stop"
    assert sample.tokens == free.tokens[: free.tokens.index(token) + 1]
    assert sample.text == free.text[: free.tokens.index(token)]


def test_the_end_of_a_text_is_no_part_of_it(gpt: TextGenerator):
    samples = gpt.complete(["abc"], num_samples=40, max_new_tokens=30, temperature=1.5, n_top=0)
    assert {sample.finish_reason for sample in samples} == {"eos", "length"}
    for sample in samples:
        assert gpt.tokenizer.end_of_text not in sample.tokens
        assert len(sample.tokens) == len(sample.logprobs)
        assert (len(sample.tokens) == 30) == (sample.finish_reason == "length")


def test_a_window_that_is_full_ends_a_sample_where_that_is_asked_for(gpt: TextGenerator):
    (sample,) = gpt.complete(["abc"], max_new_tokens=40, overflow="stop", logit_bias={gpt.tokenizer.end_of_text: -1e9})
    assert (len(sample.tokens), sample.finish_reason) == (14, "length")  # 3 + 14: the 17th is drawn from 16


def test_prompts_together_give_what_they_give_alone_in_their_order(gpt: TextGenerator):
    prompts = ["abcdefgh", "", "a", "abc" * 9]
    settings = {"max_new_tokens": 25, "num_samples": 2, "seed": 4, "stop": ["ab"]}
    together = gpt.complete(prompts, **settings)
    alone = [sample for prompt in prompts for sample in gpt.complete([prompt], **settings)]
    assert [(s.prompt, s.text, s.finish_reason) for s in together] == [
        (s.prompt, s.text, s.finish_reason) for s in alone
    ]


def test_the_likeliest_tokens_are_named_when_asked_for(gpt: TextGenerator):
    (sample,) = gpt.complete(["abc"], max_new_tokens=5, n_top=3, temperature=0)
    assert [top[0] for top in sample.top_logprobs] == list(zip(sample.tokens, sample.logprobs, strict=True))
    assert {len(top) for top in sample.top_logprobs} == {3}
    assert gpt.complete(["abc"], max_new_tokens=5)[0].top_logprobs == []


def test_half_characters_are_never_shown_before_they_are_whole():
    model = small("modern", vocab_size=257, block_size=32)
    with torch.no_grad():  # only the bytes of 李 and the end of a text, in turn
        model.head.weight.zero_()
    gpt = TextGenerator(model, ByteTokenizer())
    bias = {i: -float("inf") for i in range(257)} | dict.fromkeys("李".encode(), 0.0)
    pieces = list(gpt.stream(["x"], max_new_tokens=40, logit_bias=bias, temperature=1.0))
    shown = "".join(piece.text for piece in pieces)
    assert shown == gpt.tokenizer.decode(pieces[-1].sample.tokens) == pieces[-1].sample.text
    for piece in pieces[:-1]:
        assert not piece.text.endswith("\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"stop": [""]}, "a stop must not be empty"),
        ({"stop_ids": [11]}, "stop_ids names the id 11; ids are 0 to 10"),
        ({"num_samples": 2}, "generate gives one text; samples gives several"),
        ({"n_top": -1}, "n_top must be at least 0, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_out_of_range_are_refused(gpt: TextGenerator, settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        gpt.generate("abc", **settings)
    with pytest.raises(UserError, match="'é' is not in the vocabulary"):
        gpt.generate("é")
