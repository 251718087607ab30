"""What a row of a batch holds: a window of the running text, a document, or several.

Whatever it holds, it is made of segments of the stream that a token file is: `length` targets, the first of which
follows the id at `begin`. Each layout says where the segments of a row lie; `batches` cuts them out.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from tinygpt.data.token_file import TokenFile


class Segments(NamedTuple):
    """Parts of the stream and where they go, (N,) each."""

    row: np.ndarray  # of the batch
    column: np.ndarray
    begin: np.ndarray  # the place in the stream of the first input
    length: np.ndarray  # targets


class Layout(ABC):
    """How a stream becomes rows.

    Args:
        tokens: the stream.
        block_size: the longest row.
        truncate: leave out what a document has beyond block_size.
        max_targets: only the first so many; None: all.

    Attributes:
        n_rows: rows in an epoch.
        n_targets: targets in an epoch, each counted once.
        n_phases: in how many ways the rows can be laid out; an epoch draws one.
        width: what every row is padded to; None: to the longest of a batch.
        parts_documents: whether a row holds documents that must not see each other.
    """

    n_rows: int
    n_targets: int
    n_phases: int = 1
    width: int | None
    parts_documents: bool = False

    @abstractmethod
    def __init__(
        self, tokens: TokenFile, block_size: int, truncate: bool = False, max_targets: int | None = None
    ) -> None: ...

    @abstractmethod
    def segments(self, rows: np.ndarray, phase: int) -> Segments:
        """Where the segments of these rows, (B,), lie."""


def consecutive(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """start[0], start[0] + 1, … so many as length[0] says, then the same from start[1], …"""
    before = np.cumsum(length) - length
    return np.repeat(start - before, length) + np.arange(length.sum())


class Windows(Layout):
    """Windows of block_size, end to end, across documents; the last is shorter, and nothing is left out.

    The stream is a ring, on which the windows begin at the place that the phase names.
    """

    def __init__(
        self,
        tokens: TokenFile,
        block_size: int,
        truncate: bool = False,  # noqa: ARG002 - every layout's
        max_targets: int | None = None,
    ) -> None:
        self.block_size = self.width = block_size
        self.n_phases = len(tokens.ids) - 1
        self.n_targets = min(self.n_phases, max_targets or self.n_phases)
        self.n_rows = -(-self.n_targets // block_size)

    def segments(self, rows: np.ndarray, phase: int) -> Segments:
        offset = rows * self.block_size
        length = np.minimum(self.block_size, self.n_targets - offset)
        return Segments(np.arange(len(rows)), np.zeros_like(rows), phase + offset, length)


class Padded(Layout):
    """A document a row; one that is longer than block_size in several pieces, or only its first."""

    width = None

    def __init__(
        self, tokens: TokenFile, block_size: int, truncate: bool = False, max_targets: int | None = None
    ) -> None:
        self.begin, self.length = _cut_documents(tokens, block_size, truncate)
        if max_targets is not None:
            before = np.cumsum(self.length) - self.length
            (kept,) = np.nonzero(before < max_targets)
            self.begin, self.length = self.begin[kept], np.minimum(self.length, max_targets - before)[kept]
        self.n_rows = len(self.begin)
        self.n_targets = int(self.length.sum())

    def segments(self, rows: np.ndarray, phase: int) -> Segments:  # noqa: ARG002 - there is one
        return Segments(np.arange(len(rows)), np.zeros_like(rows), self.begin[rows], self.length[rows])


class Packed(Layout):
    """The rows of `Padded`, several behind each other in rows of block_size.

    A row takes the longest piece that is left, then always the longest that still fits.
    """

    parts_documents = True

    def __init__(
        self, tokens: TokenFile, block_size: int, truncate: bool = False, max_targets: int | None = None
    ) -> None:
        pieces = Padded(tokens, block_size, truncate, max_targets)
        self.width = block_size
        self.n_targets = pieces.n_targets
        order, self.first = _pack(pieces.length, block_size)
        self.begin, self.length = pieces.begin[order], pieces.length[order]
        self.n_rows = len(self.first) - 1

    def segments(self, rows: np.ndarray, phase: int) -> Segments:  # noqa: ARG002 - there is one
        count = self.first[rows + 1] - self.first[rows]
        row = np.repeat(np.arange(len(rows)), count)
        piece = consecutive(self.first[rows], count)
        length = self.length[piece]
        before = np.cumsum(length) - length  # targets of all rows in front
        return Segments(row, before - np.repeat(before[np.cumsum(count) - count], count), self.begin[piece], length)


LAYOUTS: dict[str, type[Layout]] = {"windows": Windows, "padded": Padded, "packed": Packed}


def _cut_documents(tokens: TokenFile, block_size: int, truncate: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where the documents' pieces of at most block_size targets begin, and how long they are; the end counts too."""
    ends, n = [], 0
    for ids in tokens.parts():
        ends.append(np.flatnonzero(ids == tokens.ids[0]) + n)  # the first is the end of a text
        n += len(ids)
    ends = np.concatenate(ends)
    begin, length = ends[:-1], np.diff(ends)
    if truncate:
        return begin, np.minimum(length, block_size)
    count = -(-length // block_size)
    offset = consecutive(np.zeros_like(count), count) * block_size
    return np.repeat(begin, count) + offset, np.minimum(block_size, np.repeat(length, count) - offset)


def _pack(length: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """An order of the pieces in which rows follow each other, and where in it each row begins, the end included."""
    by_length = np.argsort(length, kind="stable")
    bounds = np.searchsorted(length[by_length], np.arange(block_size + 2)).tolist()
    first, left = bounds[:-1], bounds[1:]  # in by_length, the pieces of length n: those that are left end at left[n]
    lengths = [n for n in range(1, block_size + 1) if left[n] > first[n]]  # that some piece has, ascending
    order = np.empty_like(by_length)
    begins = [0]
    n_placed = 0
    while lengths:
        room = block_size
        while room and (i := bisect_right(lengths, room)):
            n = lengths[i - 1]
            left[n] -= 1
            order[n_placed] = by_length[left[n]]
            n_placed += 1
            room -= n
            if left[n] == first[n]:
                del lengths[i - 1]
        begins.append(n_placed)
    return order, np.array(begins)
