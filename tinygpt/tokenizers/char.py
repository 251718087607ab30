"""One id for each character of the training text.

The saved form is a `tokenizers` file; encoding itself is one table lookup over the text's code points, which is some
hundred times as fast as that library's word-level model and agrees with it id for id.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tinygpt.errors import UserError
from tinygpt.tokenizers.base import END_OF_TEXT, Unknown, check_unknown

UNKNOWN = "<|unknown|>"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what an unknown character decodes to


class CharTokenizer:
    """The ids 0 … n-1 are the characters in code point order, then the end of text, then the unknown character.

    Args:
        characters: the known ones, each once, in code point order.
        unknown: what becomes of any other character: an "error", "skip" it, or "replace" it by the unknown id.

    Raises:
        ValueError: unknown is none of the three.
    """

    def __init__(self, characters: str, unknown: Unknown = "error") -> None:
        check_unknown(unknown)
        self.config = {"characters": characters, "unknown": unknown}
        self.unknown: Unknown = unknown
        self.end_of_text = len(characters)
        self.unknown_id = len(characters) + 1
        self.vocab_size = len(characters) + 2
        self._characters = [*characters, "", REPLACEMENT]
        self.n_bytes = np.array([len(c.encode("utf-8", "surrogatepass")) for c in self._characters])
        self._table = np.full(sys.maxunicode + 1, self.unknown_id, dtype=np.int32)  # code point → id
        self._table[_code_points(characters)] = np.arange(len(characters))

    @classmethod
    def train(cls, documents: Iterable[str], unknown: Unknown = "error") -> Self:
        """Know every character of the documents."""
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for document in documents:
            seen[_code_points(document)] = True
        return cls("".join(map(chr, np.flatnonzero(seen))), unknown)

    def encode(self, text: str) -> np.ndarray:
        ids = self._table[_code_points(text)]
        if self.unknown != "replace":
            known = ids != self.unknown_id
            if not known.all():
                if self.unknown == "error":
                    raise UserError(
                        f"{text[int(np.argmin(known))]!r} is not in the vocabulary of {self.end_of_text} characters,"
                        " those of the training text; tokenizer.unknown=skip, in sampling --unknown skip, leaves it out"
                    )
                ids = ids[known]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._characters[i] for i in ids)

    def to_json(self) -> str:
        characters = self.config["characters"]
        vocabulary = {c: i for i, c in enumerate([*characters, END_OF_TEXT, UNKNOWN])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer.to_str(pretty=True)


def _code_points(text: str) -> np.ndarray:
    """The text's code points, (N,) uint32; a lone surrogate is one too."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
