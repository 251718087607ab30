"""Any dataset of the Hugging Face Hub with a text column, or a local folder in the same layout.

`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` are the library's own and are honoured.
"""

from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError
from datasets.packaged_modules.parquet.parquet import ParquetConfig
from pyarrow.dataset import ParquetFragmentScanOptions

from tinygpt.data.corpus import Corpus, Splits, hold_out
from tinygpt.data.readers import ROWS_AT_A_TIME, check_column
from tinygpt.errors import UserError, one_line


@dataclass(kw_only=True)
class Hub(Corpus):
    """A Hub dataset, a document a row.

    Args:
        path: OWNER/NAME on the Hub, or a local folder.
        name: the configuration, where the dataset has several.
        split: the training split.
        val_split: the validation split; "a+b" joins two; None: "validation" where there is one and `split` does not
            name it, else documents held out of the training split.
        text_column: the column that holds the text.
        running_text: the rows are the lines of one text, not documents.
        revision: a branch, tag or commit of the dataset's repository.
    """

    path: str
    name: str | None = None
    split: str = "train"
    val_split: str | None = None
    text_column: str = "text"
    running_text: bool = False
    revision: str | None = None

    def splits(self) -> Splits:
        both = _terms(self.split) & _terms(self.val_split or "")
        if both:
            raise UserError(f"data.split and data.val_split both name {', '.join(both)}; name other parts")
        try:
            builder = datasets.load_dataset_builder(
                self._path, self.name, revision=self.revision, writer_batch_size=ROWS_AT_A_TIME
            )
            if isinstance(builder.config, ParquetConfig):  # which would keep all that it has read of a file in memory
                builder.config.fragment_scan_options = ParquetFragmentScanOptions(pre_buffer=False)
            builder.download_and_prepare()
            train, validation = self._load(builder, self.split), None
            names = builder.info.splits or ()
            if self.val_split is not None or ("validation" in names and "validation" not in self.split):
                validation = self._load(builder, self.val_split or "validation")
        # A damaged file or a full disk; then how the library says: no such dataset, configuration, split, network.
        except (DatasetGenerationError, OSError, ValueError) as error:
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
            raise UserError(
                f"data.path={self.path} cannot be read: {one_line(cause)}; data.path=FOLDER reads a local copy, with"
                " the dataset's README.md where that names its configurations and splits"
            ) from error
        return hold_out(train, self.val_fraction) if validation is None else Splits(train, validation)

    @property
    def _path(self) -> str:
        local = Path(self.path).expanduser()
        return str(local) if local.exists() else self.path

    def _load(self, builder: datasets.DatasetBuilder, split: str) -> Dataset:
        documents = builder.as_dataset(split)
        assert isinstance(documents, Dataset)  # a named split, not streamed
        check_column(self.path, self.text_column, documents.features)
        documents = documents.select_columns(self.text_column).rename_columns(
            {self.text_column: "text"} if self.text_column != "text" else {}
        )
        if self.running_text:
            documents = documents.add_column("end", np.zeros(len(documents), dtype=bool))  # type: ignore[arg-type]
        return documents


def _terms(split: str) -> set[str]:
    return {term.strip() for term in split.split("+")} - {""}
