"""Short documents, one a line."""

from dataclasses import dataclass

from tinygpt.data.corpus import Corpus, LayoutName, Splits, hold_out
from tinygpt.data.readers import find_files, read_documents


@dataclass(kw_only=True)
class Lines(Corpus):
    """Text files in UTF-8, of which every line that is not empty is a document.

    Args:
        files: a file, a folder (every file below it that is not hidden), a glob pattern, or a list of these.
    """

    files: str | list[str]
    layout: LayoutName = "padded"
    batch_size: int = 64  # documents are short

    def splits(self) -> Splits:
        return hold_out(read_documents(find_files(self.files), lines=True), self.val_fraction)
