"""What every tokenizer answers, whatever its ids stand for."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np

END_OF_TEXT = "<|endoftext|>"  # the vocabulary entry that parts documents; text never encodes to it

Unknown = Literal["error", "skip", "replace"]  # what becomes of text that a tokenizer has no ids for


def check_unknown(unknown: str) -> None:
    """Raise ValueError unless it is one of the three."""
    if unknown not in get_args(Unknown):
        raise ValueError(f"unknown must be error, skip or replace, got {unknown!r}")


class Tokenizer(Protocol):
    """Text to ids and back.

    A class trains itself on documents (`train`), is rebuilt from `config` (plain values, `unknown` among them), and
    writes itself as a `tokenizer.json` of the `tokenizers` library, which agrees with it id for id.
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
