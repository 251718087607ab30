"""What every corpus answers: its documents, parted into training and validation.

A corpus is a dataclass whose fields are what a user sets under `data.`; where its text comes from is its `splits`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from datasets import Dataset

from tinygpt.errors import UserError

FEW = 20  # documents, under which a share of whole ones would be far from the share that is asked for


class Splits(NamedTuple):
    """Documents as Hugging Face datasets with a `text` column."""

    train: Dataset
    validation: Dataset


@dataclass(kw_only=True)
class Corpus(ABC):
    """The fields that all corpora share.

    Args:
        batch_size: windows in a batch.
        val_fraction: share of the documents (of each document's text, where they are few) held out where the corpus
            brings no validation split.
        max_val_tokens: validate on the first so many tokens of the validation split; None: on all.
        num_workers: processes that build batches beside the training; 0: the training builds them itself.
        cache_dir: where token files are kept.
        overfit: draw the first batch again and again, and validate on it: a check that a model can learn at all.

    Raises:
        ValueError: a field is out of its range.
    """

    batch_size: int = 16
    val_fraction: float = 0.1
    max_val_tokens: int | None = None
    num_workers: int = 0
    cache_dir: str = "data/cache"
    overfit: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0.0 < self.val_fraction < 1.0:
            raise ValueError(f"val_fraction must lie between 0 and 1, got {self.val_fraction}")
        if self.max_val_tokens is not None and self.max_val_tokens < 1:
            raise ValueError(f"max_val_tokens must be at least 1, or null for all, got {self.max_val_tokens}")
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {self.num_workers}")

    @abstractmethod
    def splits(self) -> Splits:
        """Read the documents.

        Raises:
            UserError: they cannot be read, or there is too little of them.
        """


def texts(documents: Dataset) -> Iterator[str]:
    """The documents' texts, one after the other; rows without text (null) are left out."""
    for row in documents:
        text = cast(dict[str, str | None], row)["text"]
        if text is not None:
            yield text


def hold_out(documents: Dataset, fraction: float, seed: int = 0) -> Splits:
    """Part documents that came without a validation split.

    A share of the documents is drawn at random; of documents too few for that, each one's end is held out.

    Raises:
        UserError: there is no document.
    """
    if len(documents) == 0:
        raise UserError("the corpus has no documents")
    if len(documents) < FEW:
        cuts = [(text, round(len(text) * (1 - fraction))) for text in texts(documents)]
        train, validation = [text[:cut] for text, cut in cuts], [text[cut:] for text, cut in cuts]
        return Splits(Dataset.from_dict({"text": train}), Dataset.from_dict({"text": validation}))
    n_validation = min(max(1, round(len(documents) * fraction)), len(documents) - 1)
    order = np.random.default_rng(seed).permutation(len(documents))
    return Splits(documents.select(np.sort(order[n_validation:])), documents.select(np.sort(order[:n_validation])))
