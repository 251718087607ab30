"""What every corpus answers: its documents, parted into training and validation.

A corpus is a dataclass whose fields are what a user sets under `data.`; where its text comes from is its `splits`.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from datasets.table import ConcatenationTable

from tinygpt.errors import UserError

FEW = 20  # documents, under which a share of whole ones would be far from the share that is asked for
RUNS = 32  # in which documents are held out, at most
SLICE = 16 * 2**20  # bytes of text that are looked at at a time
SLICE_ROWS = 2**18  # rows, at most

LayoutName = Literal["windows", "padded", "packed"]
LongDocuments = Literal["cut", "truncate"]


class Splits(NamedTuple):
    """Documents as Hugging Face datasets with a `text` column, a document a row.

    Where there is a bool column `end`, a document may be several rows: it ends with the row that says so, which has
    text, or with the dataset. Rows without text are left out.
    """

    train: Dataset
    validation: Dataset


@dataclass(kw_only=True)
class Corpus(ABC):
    """The fields that all corpora share.

    Args:
        layout: what a row of a batch is: "windows" of the running text, across documents; "padded", one document,
            padded to the longest of the batch; "packed", several whole documents that do not see each other.
        long_documents: what becomes of a document longer than block_size in a layout of whole documents: it is "cut"
            into pieces, or "truncate"d.
        batch_size: rows in a batch.
        val_fraction: share of the documents (of each document's text, where they are few) held out where the corpus
            brings no validation split.
        max_val_tokens: validate on the first so many tokens of the validation split; None: on all.
        num_workers: processes that build batches beside the training; 0: the training builds them itself.
        num_proc: processes that encode text into token files.
        cache_dir: where token files are kept.
        overfit: draw the first batch again and again, and validate on it: a check that a model can learn at all.

    Raises:
        ValueError: a field is out of its range.
    """

    layout: LayoutName = "windows"
    long_documents: LongDocuments = "cut"
    batch_size: int = 16
    val_fraction: float = 0.1
    max_val_tokens: int | None = None
    num_workers: int = 0
    num_proc: int = 1
    cache_dir: str = "data/cache"
    overfit: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("layout", LayoutName), ("long_documents", LongDocuments)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}")
        if self.layout == "windows" and self.long_documents == "truncate":
            raise ValueError("long_documents=truncate needs layout=padded or layout=packed; windows leave nothing out")
        if not 0.0 < self.val_fraction < 1.0:
            raise ValueError(f"val_fraction must lie between 0 and 1, got {self.val_fraction}")
        if self.max_val_tokens is not None and self.max_val_tokens < 1:
            raise ValueError(f"max_val_tokens must be at least 1, or null for all, got {self.max_val_tokens}")
        for name, least in (("batch_size", 1), ("num_workers", 0), ("num_proc", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @abstractmethod
    def splits(self) -> Splits:
        """Read the documents.

        Raises:
            UserError: they cannot be read, or there is too little of them.
        """


def row_bytes(documents: Dataset) -> np.ndarray:
    """How many bytes of text each row has, (N,); learned from where the texts lie, without reading them."""
    found, first = [np.zeros(0, dtype=np.int64)], 0
    while first < len(documents):
        found.append(_row_bytes(_reopened(documents, first)))
        first += len(found[-1])
    return np.concatenate(found)


def slices(documents: Dataset, first: int = 0) -> Iterator[Dataset]:
    """The rows from `first` on, in parts of no more than SLICE bytes of text, or of one row."""
    while first < len(documents):
        ahead = _reopened(documents, first)
        n = max(1, int(np.searchsorted(np.cumsum(_row_bytes(ahead)), SLICE, side="right")))
        yield ahead.select(range(n))
        first += n


def _reopened(documents: Dataset, first: int) -> Dataset:
    """The next rows, SLICE_ROWS at most, in a memory map of their own, which is of one file.

    What has been read of a memory map stays resident until the map is closed. Pickling carries the path of the file and
    the place in it, so a copy opens the file anew.
    """
    stop = min(first + SLICE_ROWS, len(documents))
    if isinstance(documents.data, ConcatenationTable):
        ends = np.cumsum([columns[0].num_rows for columns in documents.data.blocks])
        stop = min(stop, int(ends[np.searchsorted(ends, first, side="right")]))
    return pickle.loads(pickle.dumps(documents.select(range(first, stop))))


def _row_bytes(part: Dataset) -> np.ndarray:
    column = part.with_format("arrow")[:]["text"].cast(pa.large_string())
    return pc.fill_null(pc.call_function("binary_length", [column]), 0).to_numpy()


def rows(part: Dataset) -> Iterator[tuple[str, bool]]:
    """The rows that have text, and whether a document ends with them; of documents that fit into memory."""
    columns = part[:]
    for text, end in zip(columns["text"], columns.get("end", repeat(True)), strict=False):
        if text:
            yield text, end


def texts(documents: Dataset) -> Iterator[str]:
    """The rows' texts, one after the other."""
    return (text for part in slices(documents) for text, _ in rows(part))


def hold_out(documents: Dataset, fraction: float, seed: int = 0) -> Splits:
    """Part documents that came without a validation split.

    A share of the documents is drawn at random; of documents too few for that, each one's end is held out.

    Raises:
        UserError: no document has text.
    """
    has_text = row_bytes(documents) > 0
    ends = np.ones(len(documents), dtype=bool)
    if "end" in documents.column_names:
        ends = documents.data.column("end").to_numpy()
    document = np.cumsum(ends) - ends  # of each row
    numbers, firsts = np.unique(document[has_text], return_index=True)  # of the documents that have text
    if len(numbers) == 0:
        raise UserError("the corpus has no documents with text")
    bounds = np.append(np.flatnonzero(has_text)[firsts], len(documents))  # rows where documents begin, and the end
    if len(numbers) < FEW:
        return _hold_out_ends(documents, bounds.tolist(), fraction)
    return _hold_out_runs(documents, bounds, fraction, np.random.default_rng(seed))


def _hold_out_runs(documents: Dataset, bounds: np.ndarray, fraction: float, rng: np.random.Generator) -> Splits:
    """Draw RUNS runs of neighbouring documents, spread over the corpus: what lies together is read together.

    Where so few are held out each run is a single document. The runs' order is drawn too, so that the first
    `max_val_tokens` of them are a fair sample.
    """
    n = len(bounds) - 1
    n_validation = min(max(1, round(n * fraction)), n - 1)
    n_runs = min(n_validation, RUNS)
    lengths, free = (np.diff(np.linspace(0, m, n_runs + 1).astype(int)) for m in (n_validation, n - n_validation))
    sizes = lengths + free
    starts = np.cumsum(sizes) - sizes + rng.integers(free + 1)
    train, validation = [], []
    row = 0
    for start, stop in zip(bounds[starts].tolist(), bounds[starts + lengths].tolist(), strict=True):
        train += _rows(documents, row, start)
        validation += _rows(documents, start, stop)
        row = stop
    train += _rows(documents, row, len(documents))
    return Splits(concatenate_datasets(train), concatenate_datasets([validation[i] for i in rng.permutation(n_runs)]))


def _hold_out_ends(documents: Dataset, bounds: list[int], fraction: float) -> Splits:
    """Cut each document at the character where the share begins that is held out."""
    if "end" not in documents.column_names:
        documents = documents.add_column("end", np.ones(len(documents), dtype=bool))  # type: ignore[arg-type]
    columns = (part.with_format("arrow")[:]["text"] for part in slices(documents))
    lengths = np.concatenate(
        [pc.fill_null(pc.call_function("utf8_length", [column]), 0).to_numpy() for column in columns]
    )
    train, validation = [], []
    for first, stop in pairwise(bounds):
        reached = np.cumsum(lengths[first:stop])
        cut = round(int(reached[-1]) * (1 - fraction))
        row = first + int(np.searchsorted(reached, cut))  # the one that the cut goes through
        text, offset = documents[row]["text"] or "", cut - int(reached[row - first] - lengths[row])
        train += [*_rows(documents, first, row), _row(text[:offset], True, documents)]
        validation += [_row(text[offset:], row + 1 == stop, documents), *_rows(documents, row + 1, stop)]
    return Splits(concatenate_datasets(train), concatenate_datasets(validation))


def _rows(documents: Dataset, start: int, stop: int) -> list[Dataset]:
    return [documents.select(range(start, stop))] if start < stop else []


def _row(text: str, end: bool, like: Dataset) -> Dataset:
    return Dataset.from_dict({"text": [text], "end": [end]}, features=like.features)
