"""One id for each byte of the text's UTF-8 form: every text, a vocabulary of 257, nothing to train."""

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tinygpt.tokenizers.base import END_OF_TEXT, Unknown, check_unknown, utf8


class ByteTokenizer:
    """The ids 0 … 255 are the bytes, 256 is the end of text.

    Args:
        unknown: what becomes of half a surrogate pair, the one character without UTF-8 bytes: an "error", "skip" it,
            or "replace" it by a question mark.

    Raises:
        ValueError: unknown is none of the three.
    """

    vocab_size = 257
    end_of_text = 256

    def __init__(self, unknown: Unknown = "error") -> None:
        check_unknown(unknown)
        self.config = {"unknown": unknown}
        self.unknown: Unknown = unknown
        self.n_bytes = np.array([1] * 256 + [0])

    @classmethod
    def train(cls, documents: Iterable[str], unknown: Unknown = "error") -> Self:  # noqa: ARG003 - every tokenizer's
        """There is nothing to learn: every byte is known."""
        return cls(unknown)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(bytearray(utf8(text, self.unknown)), dtype=np.uint8)  # the caller's own, to write to

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return bytes(i for i in ids if i != self.end_of_text).decode("utf-8", "replace")

    def to_json(self) -> str:
        vocabulary = {_byte_symbol(byte): byte for byte in range(256)} | {END_OF_TEXT: self.end_of_text}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer.to_str(pretty=True)


def _byte_symbol(byte: int) -> str:
    """The printable character that the `tokenizers` library's byte-level alphabet gives a byte.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, for the characters from U+0100 on.

    Source: Radford et al., 2019, section 2.2, and its published code.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(other not in printable for other in range(byte)))
