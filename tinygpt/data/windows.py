"""From a stream of ids to batches of windows and their targets, shifted once, here."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tinygpt.data.token_file import TokenFile
from tinygpt.model.loss import NOT_COUNTED

Batch = tuple[Tensor, Tensor]  # inputs and targets, (B, T) int64 each; a target of -100 is not counted


class TrainBatches(Dataset[Batch]):
    """Batch k of an endless sequence, a pure function of (seed, k).

    An epoch lays the windows out anew: from a random place they go once round the ring that the stream is, so every
    token is a target exactly once (the last window is shorter, its rest not counted). Their order is shuffled, and the
    sequence of epochs is cut into batches, which may therefore hold the end of one epoch and the start of the next.

    Args:
        tokens: the stream; its first and last id are the same.
        block_size: T, the window's length.
        batch_size: B, windows in a batch.
        seed: what the order follows from.
    """

    def __init__(self, tokens: TokenFile, block_size: int, batch_size: int, seed: int) -> None:
        self.tokens = tokens
        self.block_size = block_size
        self.batch_size = batch_size
        self.seed = seed
        self.n_targets = len(tokens.ids) - 1
        self.n_windows = -(-self.n_targets // block_size)  # in an epoch
        self._layout: tuple[int, int, np.ndarray] = (-1, 0, np.empty(0))

    def __getitem__(self, k: int) -> Batch:
        window = np.arange(k * self.batch_size, (k + 1) * self.batch_size)
        begin = np.empty(self.batch_size, dtype=np.int64)  # place in the stream of each window's first input
        length = np.empty(self.batch_size, dtype=np.int64)
        for epoch in range(window[0] // self.n_windows, window[-1] // self.n_windows + 1):
            start, order = self._epoch(epoch)
            inside = window // self.n_windows == epoch
            offset = order[window[inside] % self.n_windows] * self.block_size
            begin[inside] = start + offset
            length[inside] = np.minimum(self.block_size, self.n_targets - offset)
        return _cut(self.tokens.ids, begin, length, self.block_size)

    def _epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        """Where an epoch's first window begins, and the order in which its windows come."""
        if self._layout[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._layout = (epoch, int(rng.integers(self.n_targets)), rng.permutation(self.n_windows))
        return self._layout[1:]


class ValBatches(Dataset[Batch]):
    """The stream's first max_tokens targets, each exactly once, in windows that do not overlap."""

    def __init__(self, tokens: TokenFile, block_size: int, batch_size: int, max_tokens: int | None = None) -> None:
        self.tokens = tokens
        self.block_size = block_size
        self.batch_size = batch_size
        n_targets = len(tokens.ids) - 1
        self.n_targets = n_targets if max_tokens is None else min(max_tokens, n_targets)
        self.n_windows = -(-self.n_targets // block_size)

    def __len__(self) -> int:
        return -(-self.n_windows // self.batch_size)

    def __getitem__(self, k: int) -> Batch:
        if not 0 <= k < len(self):
            raise IndexError(k)
        begin = np.arange(k * self.batch_size, min((k + 1) * self.batch_size, self.n_windows)) * self.block_size
        length = np.minimum(self.block_size, self.n_targets - begin)
        return _cut(self.tokens.ids, begin, length, self.block_size)


def _cut(ids: np.ndarray, begin: np.ndarray, length: np.ndarray, block_size: int) -> Batch:
    """The windows that begin at these places of the ring and count so many targets, (B, T) inputs and targets."""
    n_targets = len(ids) - 1
    column = np.arange(block_size)
    place = (begin[:, None] + column) % n_targets  # (B, T)
    inputs = torch.from_numpy(ids[place].astype(np.int64))
    targets = torch.from_numpy(ids[place + 1].astype(np.int64))
    targets[torch.from_numpy(column >= length[:, None])] = NOT_COUNTED
    return inputs, targets
