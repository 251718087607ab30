"""Documents as one file of ids, read through memory mapping.

The ids are <|endoftext|> document <|endoftext|> document … <|endoftext|>: every document has an end of text in front,
so its first token is predicted too, and one behind. First and last id being the same, the stream is also a ring.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

HEADER = 512  # bytes of JSON, padded with spaces, in front of the ids
PART = 2**20  # ids that are looked at at a time


class TokenFile:
    """A finished token file.

    Attributes:
        path: where it lies.
        ids: (N,) the ids, memory-mapped, in the smallest unsigned type that holds the vocabulary.
        n_documents: how many documents it holds.
        n_bytes: how many bytes of UTF-8 text they were.

    Raises:
        ValueError: the file is not a whole token file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER))
        self.dtype = np.dtype(header["dtype"])
        self.n_documents: int = header["n_documents"]
        self.n_bytes: int = header["n_bytes"]
        if path.stat().st_size != HEADER + header["n_ids"] * self.dtype.itemsize:
            raise ValueError(f"{path} is not as long as its header says")

    @cached_property
    def ids(self) -> np.ndarray:
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=HEADER)

    def parts(self) -> Iterator[np.ndarray]:
        """The ids, part after part, read and not mapped: what has been read does not stay resident."""
        with self.path.open("rb") as file:
            file.seek(HEADER)
            while len(ids := np.fromfile(file, self.dtype, PART)):
                yield ids

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return TokenFile, (self.path,)  # a loader's worker maps the file itself; pickling the map would copy it

    def bytes_per_id(self, n_bytes: np.ndarray) -> np.ndarray:
        """How many bytes of this file's text each id stands for, (V,) float64, given what the tokenizer says.

        The bytes of characters that the tokenizer dropped or replaced are known for the whole file and are spread over
        its ids: a sum over the whole file is exact, and one over a part is, where every character was known.
        """
        told = sum(int(n_bytes[ids].sum()) for ids in self.parts())
        return n_bytes * (self.n_bytes / max(told, 1))
