"""From documents to a token file: encoded once, in slices, by one process or several."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from datasets import Dataset
from filelock import FileLock, Timeout
from tqdm import tqdm

from tinygpt import files
from tinygpt.data.corpus import rows, slices
from tinygpt.data.token_file import HEADER, TokenFile, checksum, header_bytes, read_header
from tinygpt.errors import UserError
from tinygpt.tokenizers import Tokenizer, fingerprint

VERSION = 2  # of the file: raise it when the same rows and tokenizer become another one


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
    path = directory / f"{documents._fingerprint}-{fingerprint(tokenizer)}-{VERSION}.tokens"
    if found := _whole(path):
        return found
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print("another process encodes the same text; waiting for it", file=sys.stderr)
        held = lock.acquire()
    with held:  # once: entering the lock itself as well would leave it locked
        if found := _whole(path):  # made while this one waited
            return found
        unfinished = path.with_name(path.name + files.UNFINISHED)
        unfinished.touch()
        try:
            with unfinished.open("r+b") as file:
                _write(file, documents, tokenizer, num_proc)
        except UserError:  # going on would only meet it again
            unfinished.unlink()
            raise
        files.move(unfinished, path)
    return TokenFile(path)


def _whole(path: Path) -> TokenFile | None:
    """The token file where it was made before; None where it was not, or is damaged: then it is made again."""
    try:
        file = TokenFile(path)
        file.verify()
    except (FileNotFoundError, ValueError):
        return None
    return file


class _Encoded(NamedTuple):
    """A slice of the documents as ids."""

    ids: np.ndarray
    n_rows: int
    n_documents: int
    n_bytes: int


def _write(file: BinaryIO, documents: Dataset, tokenizer: Tokenizer, num_proc: int) -> None:
    """Write the rest of a token file; its header says after each slice how far it is."""
    end_of_text = _end_of_text(tokenizer)
    dtype = end_of_text.dtype
    header = {"dtype": dtype.name, "n_ids": 0, "n_documents": 0, "n_bytes": 0, "n_rows": 0, "crc32": 0}

    def append(part: _Encoded) -> None:
        file.seek(HEADER + header["n_ids"] * dtype.itemsize)
        file.write(part.ids.tobytes())
        file.flush()
        os.fsync(file.fileno())  # the ids before the header that counts them
        header["crc32"] = zlib.crc32(part.ids.data, header["crc32"])
        header["n_ids"] += len(part.ids)
        for name in ("n_documents", "n_bytes", "n_rows"):
            header[name] += getattr(part, name)
        file.seek(0)
        file.write(header_bytes(header))
        file.flush()

    with contextlib.suppress(ValueError):  # nothing there yet, or nothing that makes sense
        found = read_header(file)
        if found["crc32"] == checksum(file, found["n_ids"] * dtype.itemsize):
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
    end_of_text = _end_of_text(tokenizer)
    ids = [end_of_text[:0]]
    n_documents = n_bytes = 0
    for text, end in rows(part):
        ids.append(tokenizer.encode(text).astype(end_of_text.dtype))
        n_bytes += len(text.encode())
        if end:
            ids.append(end_of_text)
            n_documents += 1
    return _Encoded(np.concatenate(ids), len(part), n_documents, n_bytes)


def _end_of_text(tokenizer: Tokenizer) -> np.ndarray:
    """(1,), in the smallest unsigned type that holds the vocabulary."""
    return np.array([tokenizer.end_of_text], dtype=np.min_scalar_type(tokenizer.vocab_size - 1))
