"""Writing files so that at every instant a whole one exists."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from tinygpt.errors import UsageError

UNFINISHED = ".unfinished"  # the suffix of a file that is still being written


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place when it is whole and on the disk; until then what was there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(unfinished, path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say whose it is
            error.filename = str(path)
        raise


def move(finished: Path, path: Path) -> None:
    """Give a file that is on the disk its name, and that name to the disk."""
    finished.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and a name is not lost
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text as `whole` does."""
    with whole(path) as file:
        file.write(text.encode())


def read_json_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines; none where there is no such file."""
    if not path.exists():
        return []
    # Not by splitlines, to which characters that JSON leaves as they are end a line.
    with path.open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


@contextmanager
def alone(directory: Path, timeout: float = 0) -> Iterator[None]:
    """Keep every other process from training, or sweeping, in this directory.

    Args:
        directory: where.
        timeout: seconds that another one is waited for.

    Raises:
        UsageError: one does already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock")
    try:
        held = lock.acquire(timeout=timeout)
    except Timeout as error:
        raise UsageError(f"another process trains in {directory}; wait for it, or stop it") from error
    with held:
        yield


def is_taken(directory: Path) -> bool:
    """Whether a process trains, or sweeps, in this directory."""
    try:
        with alone(directory):
            return False
    except (UsageError, OSError):  # of a directory that can only be read nobody knows
        return True
