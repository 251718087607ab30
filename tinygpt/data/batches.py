"""From segments of the stream to batches of ids and their targets, shifted once, here."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tinygpt.data.layouts import Layout, Segments, consecutive
from tinygpt.data.token_file import TokenFile
from tinygpt.model.loss import NOT_COUNTED


class Batch(NamedTuple):
    """What the model sees and what it should say.

    Attributes:
        ids: (B, T) int64.
        targets: (B, T) int64; -100 is not counted.
        padding: (B, T) bool, True on real tokens; None where the layout pads no row.
        documents: (B, T) int64, tokens of one document alike; None where all of a row may see each other.
        n_targets: how many targets count.
        begin: (B,) int64 in NumPy, the place in the stream where each row begins.
        weight: of its mean loss in an optimizer step of several batches, 1 on average: the step's loss is the mean over
            all its targets, however they are spread over the batches.
    """

    ids: Tensor
    targets: Tensor
    padding: Tensor | None
    documents: Tensor | None
    n_targets: int
    begin: np.ndarray
    weight: float = 1.0


class TrainBatches(Dataset[Batch]):
    """Batch k of an endless sequence, a pure function of (seed, k).

    An epoch has every target exactly once, in rows that the layout lays out anew where it can, in an order of its own;
    the sequence of epochs is cut into batches, which may hold the end of one epoch and the start of the next.

    Args:
        tokens: the stream.
        layout: what a row is.
        batch_size: B, rows in a batch.
        seed: what the order follows from.
        accumulate: batches in an optimizer step.
    """

    def __init__(self, tokens: TokenFile, layout: Layout, batch_size: int, seed: int, accumulate: int = 1) -> None:
        self.tokens = tokens
        self.layout = layout
        self.batch_size = batch_size
        self.seed = seed
        self.accumulate = accumulate
        self._drawn: tuple[int, int, np.ndarray] = (-1, 0, np.empty(0))

    def __getitem__(self, k: int) -> Batch:
        step = k - k % self.accumulate
        batches = [self._segments(i) for i in range(step, step + self.accumulate)]
        n_targets = sum(int(segments.length.sum()) for segments in batches)
        batch = _cut(self.tokens.ids, self.layout, batches[k - step])
        return batch._replace(weight=batch.n_targets * self.accumulate / n_targets)

    def _segments(self, k: int) -> Segments:
        n_rows = self.layout.n_rows
        numbers = np.arange(k * self.batch_size, (k + 1) * self.batch_size)
        found = []
        for epoch in range(numbers[0] // n_rows, numbers[-1] // n_rows + 1):
            phase, order = self._epoch(epoch)
            (here,) = np.nonzero(numbers // n_rows == epoch)
            segments = self.layout.segments(order[numbers[here] % n_rows], phase)
            found.append(segments._replace(row=segments.row + here[0]))
        return Segments(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))

    def _epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        """An epoch's phase, and the order in which its rows come."""
        if self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._drawn = (epoch, int(rng.integers(self.layout.n_phases)), rng.permutation(self.layout.n_rows))
        return self._drawn[1:]


class ValBatches(Dataset[Batch]):
    """The layout's rows in order, each once."""

    def __init__(self, tokens: TokenFile, layout: Layout, batch_size: int) -> None:
        self.tokens = tokens
        self.layout = layout
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-self.layout.n_rows // self.batch_size)

    def __getitem__(self, k: int) -> Batch:
        if not 0 <= k < len(self):
            raise IndexError(k)
        rows = np.arange(k * self.batch_size, min((k + 1) * self.batch_size, self.layout.n_rows))
        return _cut(self.tokens.ids, self.layout, self.layout.segments(rows, 0))


def _cut(ids: np.ndarray, layout: Layout, segments: Segments) -> Batch:
    row, column, begin, length = segments
    shape = int(row[-1]) + 1, layout.width or int((column + length).max())
    place = consecutive(begin, length) % (len(ids) - 1)  # the stream is a ring
    where = np.repeat(row, length), consecutive(column, length)
    # Where nothing is: an id that exists, no target, a document of its own.
    inputs, targets = np.full(shape, int(ids[0])), np.full(shape, NOT_COUNTED)
    inputs[where], targets[where] = ids[place], ids[place + 1]
    padding = documents = None
    if layout.width is None:
        padding = np.zeros(shape, dtype=bool)
        padding[where] = True
    if layout.parts_documents:
        documents = np.full(shape, -1)
        documents[where] = np.repeat(np.arange(len(row)), length)
    return Batch(
        ids=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        padding=None if padding is None else torch.from_numpy(padding),
        documents=None if documents is None else torch.from_numpy(documents),
        n_targets=len(place),
        begin=begin[np.unique(row, return_index=True)[1]] % (len(ids) - 1),
    )
