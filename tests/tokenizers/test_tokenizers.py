"""One set of tests for every tokenizer: round trips, the saved file, the end of text, the bytes behind ids."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer as Library

from tests.conftest import CONF, choices
from tinygpt.config import target
from tinygpt.errors import UserError
from tinygpt.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, fingerprint, last_safe_cut
from tinygpt.tokenizers.base import pieces

TEXTS = ["", "Hello, world", "It's 李明 = {x}\r\n\t\0", "e\u0301 é 🙂‍↔️", "<|endoftext|>", "<|unknown|> \ufeff\u2028"]


def trainer(name: str) -> Callable[[list[str]], Tokenizer]:
    """What trains the tokenizer of this configuration."""
    node = OmegaConf.load(CONF / "tokenizer" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    train = target({"_target_": node["_target_"]})
    return partial(train, path="tokenizer.json") if OmegaConf.is_missing(node, "path") else train


every_tokenizer = pytest.mark.parametrize(
    "train", [trainer(name) for name in choices("tokenizer")], ids=choices("tokenizer")
)


@pytest.fixture(autouse=True)
def _pretrained_file() -> None:
    """A tokenizer.json made as GPT-2's real one is: its end of text is also an added special token."""
    library = Library.from_str(BPETokenizer.train(TEXTS, vocab_size=300).to_json())
    library.add_special_tokens(["<|endoftext|>"])
    library.save("tokenizer.json")


@every_tokenizer
@given(text=st.text())
def test_every_string_comes_back_exactly(train: Callable[[list[str]], Tokenizer], text: str):
    tokenizer = train([text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.flags.writeable  # PyTorch warns of arrays that are not


def random_text(generator: random.Random) -> str:
    """Characters of every plane but the surrogates, and what tokenizers stumble over more often."""
    odd = [
        "\r\n",
        "\n\n",
        "  ",
        "\u2028",
        "\ufeff",
        "\0",
        "e\u0301",
        "👩‍💻",
        "'s",
        "\x1c",
        "\xa0",
        "\u3000",
        "<|endoftext|>",
    ]
    planes = (0x80, 0x800, 0xD800, 0x110000)
    characters = [chr(generator.randrange(generator.choice(planes))) for _ in range(generator.randrange(20))]
    parts = [c for c in characters if not "\ud800" <= c <= "\udfff"] + generator.choices(odd, k=generator.randrange(10))
    return "".join(generator.sample(parts, len(parts)))


@every_tokenizer
def test_ten_thousand_random_strings_come_back_exactly(train: Callable[[list[str]], Tokenizer]):
    generator = random.Random(0)
    texts = [random_text(generator) for _ in range(10_000)]
    tokenizer = train(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_the_saved_file_agrees_id_for_id(train: Callable[[list[str]], Tokenizer], text: str):
    tokenizer = train(TEXTS)
    library = Library.from_str(tokenizer.to_json())
    assert library.get_vocab_size() == tokenizer.vocab_size
    ids = tokenizer.encode(text).tolist()
    if text not in (token.content for token in library.get_added_tokens_decoder().values()):
        assert library.encode(text).ids == ids
    assert library.decode(ids) == text


@every_tokenizer
def test_end_of_text_written_in_the_text_stays_text(train: Callable[[list[str]], Tokenizer]):
    tokenizer = train(TEXTS)
    ids = tokenizer.encode("H<|endoftext|>o")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode([*ids, tokenizer.end_of_text]) == "H<|endoftext|>o"


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_behind_the_ids_are_those_of_the_text(train: Callable[[list[str]], Tokenizer], text: str):
    tokenizer = train(TEXTS)
    assert tokenizer.n_bytes.shape == (tokenizer.vocab_size,)
    assert tokenizer.n_bytes[tokenizer.encode(text)].sum() == len(text.encode())
    assert tokenizer.n_bytes[tokenizer.end_of_text] == 0


@every_tokenizer
def test_config_builds_the_same_tokenizer_again(train: Callable[[list[str]], Tokenizer]):
    tokenizer = train(TEXTS)
    again = type(tokenizer)(**tokenizer.config)
    assert fingerprint(again) == fingerprint(tokenizer)
    for text in TEXTS:
        assert np.array_equal(again.encode(text), tokenizer.encode(text))


def test_char_ids_follow_code_points_and_then_come_the_special_ones():
    tokenizer = CharTokenizer.train(["ba", "é"])
    assert tokenizer.encode("abé").tolist() == [0, 1, 2]
    assert (tokenizer.end_of_text, tokenizer.unknown_id, tokenizer.vocab_size) == (3, 4, 5)


def test_an_unknown_character_is_an_error_or_skipped_or_replaced():
    with pytest.raises(UserError, match="'é' is not in the vocabulary of 3 characters.*tokenizer.unknown.*--unknown"):
        CharTokenizer("abc").encode("abécé")
    assert CharTokenizer("abc", "skip").encode("abécé").tolist() == [0, 1, 2]
    replaced = CharTokenizer("abc", "replace").encode("abécé")
    assert replaced.tolist() == [0, 1, 4, 2, 4]
    assert CharTokenizer("abc", "replace").decode(replaced.tolist()) == "ab\ufffdc\ufffd"
    with pytest.raises(ValueError, match="unknown must be error, skip or replace, got 'drop'"):
        CharTokenizer("abc", "drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ByteTokenizer, BPETokenizer])
def test_half_a_surrogate_pair_has_no_bytes(kind: type[ByteTokenizer | BPETokenizer]):
    with pytest.raises(UserError, match=r"'\\ud800' at character 1 is half a surrogate pair"):
        kind.train(["ab"]).encode("a\ud800b")
    for unknown, text in (("skip", "ab"), ("replace", "a?b")):
        tokenizer = kind.train(["a\ud800b"], unknown=unknown)
        assert tokenizer.decode(tokenizer.encode("a\ud800b").tolist()) == text
    with pytest.raises(ValueError, match="unknown must be error, skip or replace, got 'drop'"):
        kind.train(["ab"], unknown="drop")  # type: ignore[arg-type]


def test_a_text_is_cut_before_the_last_space_or_newline_that_follows_something():
    texts = {
        "": 0,
        "abc": 0,
        " abc": 0,
        "a b c": 3,
        "a b ": 3,
        "a b  ": 3,
        "a.\nb": 2,
        "a \n": 1,
        "a\tb": 0,
        "a\xa0 b": 0,
    }
    assert {text: last_safe_cut(text) for text in texts} == texts


def test_pieces_are_short_where_cutting_is_safe_and_long_where_it_is_not():
    assert list(pieces("a b c defghij kl", 4)) == ["a b", " c", " defghij kl"]
    assert "".join(pieces("x" * 1000, 4)) == "x" * 1000
    assert list(pieces("", 4)) == [""]


def test_fingerprints_follow_what_is_encoded():
    tokenizers = [CharTokenizer("ab"), CharTokenizer("abc"), CharTokenizer("abc", "skip"), ByteTokenizer()]
    assert len({fingerprint(tokenizer) for tokenizer in tokenizers}) == 4
    assert fingerprint(CharTokenizer("ab")) == fingerprint(CharTokenizer("ab"))
