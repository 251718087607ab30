"""Documents encoded once: one file of ids, read through memory mapping.

The ids are <|endoftext|> document <|endoftext|> document … <|endoftext|>: every document has an end of text in front,
so its first token is predicted too, and one behind. First and last id being the same, the stream is also a ring.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from datasets import Dataset
from filelock import FileLock
from tqdm import tqdm

from tinygpt.data.corpus import rows, slices
from tinygpt.errors import UserError
from tinygpt.tokenizers import Tokenizer, fingerprint

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


def encode(documents: Dataset, tokenizer: Tokenizer, directory: Path, num_proc: int = 1) -> TokenFile:
    """The token file of these documents under this tokenizer: found whole where it was made before, else made.

    Its name holds the fingerprints of both. It grows under another name, slice by slice, and is moved into place when
    it is whole; what a killed process leaves is gone on with. Of two processes that want it at once, one waits.

    Args:
        documents: see `Splits`.
        tokenizer: what makes ids of them.
        directory: where token files lie.
        num_proc: how many processes encode.

    Raises:
        UserError: the tokenizer refuses a text.
    """
    path = directory / f"{documents._fingerprint}-{fingerprint(tokenizer)}.tokens"
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or a damaged one
        return TokenFile(path)
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # made while this one waited
            return TokenFile(path)
        unfinished = path.with_suffix(".unfinished")
        unfinished.touch()
        try:
            with unfinished.open("r+b") as file:
                _write(file, documents, tokenizer, num_proc)
        except UserError:  # going on would only meet it again
            unfinished.unlink()
            raise
        unfinished.replace(path)
    return TokenFile(path)


class _Encoded(NamedTuple):
    """A slice of the documents as ids."""

    ids: np.ndarray
    n_rows: int
    n_documents: int
    n_bytes: int


def _write(file: BinaryIO, documents: Dataset, tokenizer: Tokenizer, num_proc: int) -> None:
    """Write the rest of a token file; its header says after each slice how far it is."""
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    end_of_text = np.array([tokenizer.end_of_text], dtype=dtype)
    header = {"dtype": dtype.name, "n_ids": 0, "n_documents": 0, "n_bytes": 0, "n_rows": 0}

    def append(part: _Encoded) -> None:
        file.seek(HEADER + header["n_ids"] * dtype.itemsize)
        file.write(part.ids.tobytes())
        file.flush()
        os.fsync(file.fileno())  # the ids before the header that counts them
        header["n_ids"] += len(part.ids)
        for name in ("n_documents", "n_bytes", "n_rows"):
            header[name] += getattr(part, name)
        file.seek(0)
        file.write(json.dumps(header).encode().ljust(HEADER))
        file.flush()

    with contextlib.suppress(ValueError, AttributeError):  # nothing there yet, or nothing that makes sense
        found = json.loads(file.read(HEADER))
        n_bytes = file.seek(0, os.SEEK_END)
        if found.keys() == header.keys() and n_bytes >= HEADER + found["n_ids"] * dtype.itemsize:
            header = found
    if header["n_ids"] == 0:
        append(_Encoded(end_of_text, 0, 0, 0))
    parts = slices(documents, header["n_rows"])
    with tqdm(
        None, "encoding", len(documents), initial=header["n_rows"], unit=" rows", disable=None, leave=False
    ) as bar:
        for part in _encoded(parts, tokenizer, num_proc):
            append(part)
            bar.update(part.n_rows)
    file.truncate(HEADER + header["n_ids"] * dtype.itemsize)
    file.seek(-dtype.itemsize, os.SEEK_END)
    if file.read() != end_of_text.tobytes():  # the last row ended no document
        append(_Encoded(end_of_text, 0, 1, 0))
    os.fsync(file.fileno())


def _encoded(parts: Iterable[Dataset], tokenizer: Tokenizer, num_proc: int) -> Iterator[_Encoded]:
    """The slices' ids, in order, with no more than two slices a process on their way."""
    if num_proc == 1:
        yield from (_encode(part, tokenizer) for part in parts)
        return
    # A forked process would inherit locks that other threads hold, so each is started anew.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_proc, spawn, initializer=_start_worker, initargs=(tokenizer,))
    waiting: deque[Future[_Encoded]] = deque()
    try:
        for part in parts:
            waiting.append(pool.submit(_encode, part))
            if len(waiting) == 2 * num_proc:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_worker_tokenizer: Tokenizer | None = None  # sent once, not with every slice


def _start_worker(tokenizer: Tokenizer) -> None:
    global _worker_tokenizer
    _worker_tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's business
    parent = multiprocessing.parent_process()
    assert parent is not None

    def die_with_the_parent() -> None:
        parent.join()
        os._exit(1)  # one that was killed says nothing, and this process would wait for work for ever

    threading.Thread(target=die_with_the_parent, daemon=True).start()


def _encode(part: Dataset, tokenizer: Tokenizer | None = None) -> _Encoded:
    tokenizer = tokenizer or _worker_tokenizer
    assert tokenizer is not None
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    end_of_text = np.array([tokenizer.end_of_text], dtype)
    ids = [np.empty(0, dtype)]
    n_documents = n_bytes = 0
    for text, end in rows(part):
        ids.append(tokenizer.encode(text).astype(dtype))
        n_bytes += len(text.encode())
        if end:
            ids.append(end_of_text)
            n_documents += 1
    return _Encoded(np.concatenate(ids), len(part), n_documents, n_bytes)
