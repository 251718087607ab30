"""Documents encoded once: one file of ids, read through memory mapping.

The ids are <|endoftext|> document <|endoftext|> document … <|endoftext|>: every document has an end of text in front,
so its first token is predicted too, and one behind. First and last id being the same, the stream is also a ring.
"""

import contextlib
import json
import os
from functools import cached_property
from pathlib import Path

import numpy as np
from datasets import Dataset
from tqdm import tqdm

from tinygpt.data.corpus import texts
from tinygpt.tokenizers import Tokenizer, fingerprint

HEADER = 512  # bytes of JSON, padded with spaces, in front of the ids


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

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return TokenFile, (self.path,)  # a loader's worker maps the file itself; pickling the map would copy it

    def bytes_per_id(self, n_bytes: np.ndarray) -> np.ndarray:
        """How many bytes of this file's text each id stands for, (V,) float64, given what the tokenizer says.

        The bytes of characters that the tokenizer dropped or replaced are known for the whole file and are spread over
        its ids: a sum over the whole file is exact, and one over a part is, where every character was known.
        """
        told = int(np.bincount(self.ids, minlength=len(n_bytes)) @ n_bytes)
        return n_bytes * (self.n_bytes / max(told, 1))


def encode(documents: Dataset, tokenizer: Tokenizer, directory: Path) -> TokenFile:
    """The token file of these documents under this tokenizer: found whole where it was made before, else made.

    Its name holds the fingerprints of both. It is written under another name and moved into place when it is whole.
    """
    path = directory / f"{documents._fingerprint}-{fingerprint(tokenizer)}.tokens"
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or a damaged one
        return TokenFile(path)
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    end_of_text = np.array([tokenizer.end_of_text], dtype=dtype)
    n_documents = n_bytes = 0
    try:
        with unfinished.open("wb") as file:
            file.write(b" " * HEADER)
            file.write(end_of_text.tobytes())
            for text in tqdm(
                texts(documents), "encoding", len(documents), unit=" documents", disable=None, leave=False
            ):
                file.write(tokenizer.encode(text).astype(dtype).tobytes())
                file.write(end_of_text.tobytes())
                n_documents += 1
                n_bytes += len(text.encode("utf-8", "surrogatepass"))
            n_ids = (file.seek(0, os.SEEK_END) - HEADER) // dtype.itemsize
            header = {"dtype": dtype.name, "n_ids": n_ids, "n_documents": n_documents, "n_bytes": n_bytes}
            file.seek(0)
            file.write(json.dumps(header).encode().ljust(HEADER))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return TokenFile(path)
