"""What every tokenizer answers, whatever its ids stand for."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np

from tinygpt.errors import UserError

END_OF_TEXT = "<|endoftext|>"  # the vocabulary entry that parts documents; text never encodes to it

Unknown = Literal["error", "skip", "replace"]  # what becomes of text that a tokenizer has no ids for


def check_unknown(unknown: str) -> None:
    """Raise ValueError unless it is one of the three."""
    if unknown not in get_args(Unknown):
        raise ValueError(f"unknown must be error, skip or replace, got {unknown!r}")


def utf8(text: str, unknown: Unknown) -> bytes:
    """The text's UTF-8 form; half a surrogate pair, the one character without one, is skipped, or becomes "?".

    Raises:
        UserError: there is one, and `unknown` is "error".
    """
    try:
        return text.encode("utf-8", {"error": "strict", "skip": "ignore", "replace": "replace"}[unknown])
    except UnicodeEncodeError as error:
        raise UserError(
            f"{text[error.start]!r} at character {error.start} is half a surrogate pair and has no UTF-8 form;"
            " skip such characters by tokenizer.unknown=skip or --unknown skip"
        ) from error


_LAST_SAFE_CUT = re.compile(r"(?s:.*)(?<=\S)(?=[ \n])")  # greedy: it is searched from the end


def last_safe_cut(text: str) -> int:
    """The last place in a text where cutting it in two changes no token; 0 where there is none.

    That is before a space or a newline that follows something else than white space: the words of byte-level BPE begin
    with white space and never end in it unless more of it follows.

    Source: Radford et al., 2019, and the pattern in its published code.
    """
    match = _LAST_SAFE_CUT.match(text)
    return match.end() if match else 0


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at most `size` characters, cut where that changes no token; longer where it would."""
    start, end = 0, size
    while end < len(text):
        cut = last_safe_cut(text[start:end])
        if cut:
            yield text[start : start + cut]
            start, end = start + cut, start + cut + size
        else:
            end += end - start  # doubled, so that no text is searched again and again
    yield text[start:]


class Tokenizer(Protocol):
    """Text to ids and back.

    A class trains itself on documents (`train`), is rebuilt from `config` (plain values, `unknown` among them), and
    writes itself as a `tokenizer.json` of the `tokenizers` library, which agrees with it id for id on text.
    """

    config: dict[str, Any]
    vocab_size: int
    end_of_text: int
    unknown: Unknown
    n_bytes: np.ndarray  # (V,) int64: how many bytes of UTF-8 text each id stands for; 0 for the end of text

    @classmethod
    def train(cls, documents: Iterable[str]) -> Self:
        """Learn what there is to learn from the training documents alone."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, (N,); `<|endoftext|>` written in it is text like any other.

        Raises:
            UserError: the text holds what this tokenizer has no ids for, and `unknown` is "error".
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; the end of text decodes to nothing."""
        ...

    def to_json(self) -> str:
        """The contents of a `tokenizer.json`."""
        ...


def fingerprint(tokenizer: Tokenizer) -> str:
    """16 hexadecimal digits that change whenever the same text could encode to other ids."""
    content = f"{type(tokenizer).__name__} {sorted(tokenizer.config.items())}"
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
