"""The user's own files."""

from dataclasses import dataclass

from tinygpt.data.corpus import Corpus, Splits, hold_out
from tinygpt.data.readers import find_files, read_documents


@dataclass(kw_only=True)
class TextFiles(Corpus):
    """Text files in UTF-8, each one document; of `.jsonl`, `.ndjson` and `.parquet` files each row.

    Args:
        files: a file, a folder (every file below it that is not hidden), a glob pattern, or a list of these.
        text_column: what holds the text in files with rows.
    """

    files: str | list[str]
    text_column: str = "text"

    def splits(self) -> Splits:
        documents = read_documents(find_files(self.files), text_column=self.text_column)
        return hold_out(documents, self.val_fraction)
