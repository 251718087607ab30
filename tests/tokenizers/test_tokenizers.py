"""One set of tests for every tokenizer: round trips, the saved file, the end of text, the bytes behind ids."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer as Library

from tests.conftest import CONF, choices
from tinygpt.config import target
from tinygpt.errors import UserError
from tinygpt.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, fingerprint

TEXTS = ["", "Hello, world", "It's 李明 = {x}\r\n\t\0", "e\u0301 é 🙂‍↔️", "<|endoftext|>", "<|unknown|> \ufeff\u2028"]


def trainer(name: str) -> Callable[[list[str]], Tokenizer]:
    """What trains the tokenizer of this configuration."""
    node = OmegaConf.load(CONF / "tokenizer" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    return target({"_target_": node["_target_"]})


every_tokenizer = pytest.mark.parametrize(
    "train", [trainer(name) for name in choices("tokenizer")], ids=choices("tokenizer")
)


@every_tokenizer
@given(text=st.text())
def test_every_string_comes_back_exactly(train: Callable[[list[str]], Tokenizer], text: str):
    tokenizer = train([text])
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


@every_tokenizer
@pytest.mark.parametrize("text", TEXTS)
def test_the_saved_file_agrees_id_for_id(train: Callable[[list[str]], Tokenizer], text: str):
    tokenizer = train(TEXTS)
    library = Library.from_str(tokenizer.to_json())
    assert library.get_vocab_size() == tokenizer.vocab_size
    ids = tokenizer.encode(text).tolist()
    assert library.encode(text).ids == ids
    assert library.decode(ids) == text


@every_tokenizer
def test_end_of_text_written_in_the_text_stays_text(train: Callable[[list[str]], Tokenizer]):
    tokenizer = train(TEXTS)
    ids = tokenizer.encode("a<|endoftext|>b".replace("a", "H").replace("b", "o"))
    assert tokenizer.end_of_text not in ids
    assert len(ids) == len("H<|endoftext|>o")
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


def test_half_a_surrogate_pair_has_no_bytes():
    tokenizer = ByteTokenizer()
    with pytest.raises(UserError, match=r"'\\ud800' at character 1 is half a surrogate pair"):
        tokenizer.encode("a\ud800b")
    tokenizer.unknown = "skip"
    assert tokenizer.decode(tokenizer.encode("a\ud800b").tolist()) == "ab"


def test_fingerprints_follow_what_is_encoded():
    tokenizers = [CharTokenizer("ab"), CharTokenizer("abc"), CharTokenizer("abc", "skip"), ByteTokenizer()]
    assert len({fingerprint(tokenizer) for tokenizer in tokenizers}) == 4
    assert fingerprint(CharTokenizer("ab")) == fingerprint(CharTokenizer("ab"))
