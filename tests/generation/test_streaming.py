"""Text as it comes: the same as all at once, never half a character, nothing of a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpt.generation.streaming import IncrementalDecoder, StopWatch
from tinygpt.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, PretrainedTokenizer

TEXTS = ["Hello, 李明! é🙂‍↔️ to be, or not to be", "naïve café\r\n\t0"]
BPE = BPETokenizer.train(TEXTS, vocab_size=300)
TOKENIZERS = [ByteTokenizer(), BPE, CharTokenizer("".join(TEXTS), "replace"), PretrainedTokenizer(BPE.to_json())]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda t: type(t).__name__)
@given(data=st.data())
def test_pieces_put_together_are_the_whole_text(tokenizer, data):
    """Also of ids that are no text: half characters, wrong bytes."""
    if data.draw(st.booleans()):
        ids = tokenizer.encode(data.draw(st.sampled_from(TEXTS))).tolist()
    else:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.add(i) for i in ids]
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)


def test_a_character_comes_whole_with_its_last_byte():
    decoder = IncrementalDecoder(ByteTokenizer())
    assert [decoder.add(byte) for byte in "é李🙂a".encode()] == ["", "é", "", "", "李", "", "", "", "🙂", "a"]
    assert decoder.flush() == ""


def test_half_a_character_at_the_end_is_shown_as_one():
    decoder = IncrementalDecoder(ByteTokenizer())
    assert [decoder.add(byte) for byte in "a🙂".encode()[:3]] == ["a", "", ""]
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"


def slow_stop(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """All the text after each piece, searched anew."""
    text = ""
    for piece in pieces:
        text += piece
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)], True
    return text, False


letters = st.text("ab", max_size=4)


@given(pieces=st.lists(letters, max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_and_nothing_of_it_is_ever_shown(pieces, stops):
    watch = StopWatch(stops)
    shown = []
    for piece in pieces:
        shown.append(watch.add(piece))
        assert "".join(shown) == slow_stop(pieces, stops)[0][: len("".join(shown))]
    assert ("".join(shown) + watch.flush(), watch.stopped) == slow_stop(pieces, stops)


def test_a_prefix_of_a_stop_is_held_back_until_it_is_none():
    watch = StopWatch(["\n\n", "END"])
    assert [watch.add(text) for text in ("a", "\n", "b E", "N", "d", "E", "ND tail")] == [
        "a",
        "",
        "\nb ",
        "",
        "ENd",
        "",
        "",
    ]
    assert watch.stopped
    assert watch.flush() == ""
    assert watch.add("more") == ""


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="a stop must not be empty"):
        StopWatch(["a", ""])
