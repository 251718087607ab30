"""Documents as one file of ids, read through memory mapping.

The ids are <|endoftext|> document <|endoftext|> document … <|endoftext|>: every document has an end of text in front,
so its first token is predicted too, and one behind. First and last id being the same, the stream is also a ring.
"""

import json
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

HEADER = 512  # bytes in front of the ids: a checksum of the JSON that follows it, padded with spaces
PART = 2**20  # ids, or bytes, that are looked at at a time


def read_header(file: BinaryIO) -> dict[str, Any]:
    """What a token file says of itself at its start.

    Raises:
        ValueError: that is not what was written.
    """
    crc32, _, text = file.read(HEADER).decode("ascii").rstrip(" ").partition(" ")
    if crc32 != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("the header of the token file is damaged")
    return json.loads(text)


def header_bytes(header: dict[str, Any]) -> bytes:
    """The inverse of `read_header`."""
    text = json.dumps(header)
    return f"{zlib.crc32(text.encode()):08x} {text}".encode().ljust(HEADER)


def checksum(file: BinaryIO, n_bytes: int) -> int:
    """CRC-32 of the first so many bytes of ids; of fewer, where the file is shorter."""
    found = 0
    file.seek(HEADER)
    while part := file.read(min(n_bytes, PART)):
        found = zlib.crc32(part, found)
        n_bytes -= len(part)
    return found


class TokenFile:
    """A finished token file.

    Attributes:
        path: where it lies.
        ids: (N,) the ids, memory-mapped, in the smallest unsigned type that holds the vocabulary.
        n_documents: how many documents it holds.
        n_bytes: how many bytes of UTF-8 text they were.

    Raises:
        ValueError: the file is not a whole token file; `verify` looks at the ids too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            header = read_header(file)
        self._crc32: int = header["crc32"]
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

    def verify(self) -> None:
        """Raise ValueError unless the ids are those that were written."""
        with self.path.open("rb") as file:
            found = checksum(file, self.path.stat().st_size - HEADER)
        if found != self._crc32:
            raise ValueError(f"{self.path} is damaged: its ids are not those that were written")

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return TokenFile, (self.path,)  # a loader's worker maps the file itself; pickling the map would copy it

    def bytes_per_id(self, n_bytes: np.ndarray) -> np.ndarray:
        """How many bytes of this file's text each id stands for, (V,) float64, given what the tokenizer says.

        The bytes of characters that the tokenizer dropped or replaced are known for the whole file and are spread over
        its ids: a sum over the whole file is exact, and one over a part is, where every character was known.
        """
        told = sum(int(n_bytes[ids].sum()) for ids in self.parts())
        return n_bytes * (self.n_bytes / max(told, 1))
