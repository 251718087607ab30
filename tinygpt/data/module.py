"""The token files as Lightning takes them."""

import signal
from collections.abc import Iterable
from itertools import count, repeat
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset

from tinygpt.data.batches import Batch, TrainBatches, ValBatches
from tinygpt.data.corpus import Corpus
from tinygpt.data.layouts import LAYOUTS
from tinygpt.data.token_file import TokenFile
from tinygpt.errors import UserError
from tinygpt.signals import SIGNALS


class TextDataModule(pl.LightningDataModule):
    """Endless training batches, and the validation batches.

    The training loader has no end and knows no epochs of Lightning's: the number of steps ends a run, accumulation
    never meets a short last batch, and batch k is the same whatever came before. A checkpoint keeps how many rows were
    seen: a run that is gone on with, even in batches of another size, goes on with the row after them.

    Args:
        train, validation: the token files.
        corpus: the fields that say how batches are made.
        block_size: the longest row.
        seed: what the training order follows from.
        accumulate: batches in an optimizer step.

    Raises:
        UserError: there is nothing to train or to validate on, or windows are longer than the training text.
    """

    def __init__(
        self,
        train: TokenFile,
        validation: TokenFile,
        *,
        corpus: Corpus,
        block_size: int,
        seed: int,
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        if train.n_bytes == 0:
            raise UserError("the training split holds no text: give more documents, or a smaller data.val_fraction")
        if corpus.layout == "windows" and len(train.ids) <= block_size:
            raise UserError(
                f"the training split has {len(train.ids) - 1:,} tokens, fewer than model.block_size={block_size}:"
                " give more text, or a smaller block_size"
            )
        if validation.n_bytes == 0:
            raise UserError("the validation split holds no text: give more documents, or a larger data.val_fraction")
        self.train = train
        self.validation = validation
        self.corpus = corpus
        self.seed = seed
        self.accumulate = accumulate
        layout, truncate = LAYOUTS[corpus.layout], corpus.long_documents == "truncate"
        self._seen = (0, 0)  # optimizer steps and rows, when this process began
        self.train_layout = layout(train, block_size, truncate)
        self.val_layout = layout(validation, block_size, truncate, corpus.max_val_tokens)

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        (step, rows), now = self._seen, self.trainer.global_step
        rows += (now - step) * self.accumulate * self.corpus.batch_size
        return {"step": now, "rows": rows, "tokens": [file.path.name for file in (self.train, self.validation)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seen = state_dict["step"], state_dict["rows"]

    def train_batches(self) -> TrainBatches:
        accumulate = 1 if self.corpus.overfit else self.accumulate  # the same batch weighs the same each time
        return TrainBatches(self.train, self.train_layout, self.corpus.batch_size, self.seed, accumulate)

    def val_batches(self) -> ValBatches:
        return ValBatches(self.validation, self.val_layout, self.corpus.batch_size)

    def train_dataloader(self) -> DataLoader[Batch]:
        steps = -(-self._seen[1] // (self.corpus.batch_size * self.accumulate))
        return self._loader(self.train_batches(), repeat(0) if self.corpus.overfit else count(steps * self.accumulate))

    def val_dataloader(self) -> DataLoader[Batch]:
        if self.corpus.overfit:
            return self._loader(self.train_batches(), range(1))
        batches = self.val_batches()
        return self._loader(batches, range(len(batches)))

    def _loader(self, batches: Dataset[Batch], numbers: Iterable[int]) -> DataLoader[Batch]:
        workers = self.corpus.num_workers
        return DataLoader(
            batches,
            batch_size=None,  # the dataset's items are whole batches
            sampler=numbers,
            num_workers=workers,
            worker_init_fn=_leave_signals_to_the_training,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),  # so that copies to the GPU run beside the computation
            generator=torch.Generator(),  # a loader draws a seed for its workers: not from the stream that dropout uses
        )


def _leave_signals_to_the_training(_worker: int) -> None:
    """Terminals and schedulers signal all processes; a worker that died of it would fail the step to be saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
