"""The user's own files, a document each; and the reading of files that other corpora share."""

import glob
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from tinygpt.data.corpus import Corpus, Splits, hold_out
from tinygpt.errors import UserError

TEXT = Features({"text": Value("large_string")})


@dataclass(kw_only=True)
class TextFiles(Corpus):
    """Text files in UTF-8, each one document.

    Args:
        files: a file, a folder (every file below it that is not hidden), a glob pattern, or a list of these.
    """

    files: str | list[str]

    def splits(self) -> Splits:
        files = find_files([self.files] if isinstance(self.files, str) else self.files)
        return hold_out(read_documents(files), self.val_fraction)


def find_files(patterns: Sequence[str]) -> list[Path]:
    """The files that names, folders and glob patterns stand for: in order, sorted within each, each file once.

    Raises:
        UserError: one of them stands for no file, or for one that is not plain text.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        if not pattern:
            raise UserError("data.files holds an empty name; name files, a folder or a glob pattern")
        path = Path(pattern).expanduser()
        if path.is_file():  # before globbing: a file's name may hold [ or *
            files = [path]
        elif path.is_dir():
            files = [f for f in path.rglob("*") if not any(p.startswith(".") for p in f.relative_to(path).parts)]
        else:
            files = [Path(f) for f in glob.glob(str(path), recursive=True)]
        files = sorted(f for f in files if f.is_file())
        if not files:
            raise UserError(f"data.files: there is no file {pattern!r}; name files, a folder or a glob pattern")
        found.update(dict.fromkeys(files))
    for file in found:
        if file.suffix in (".jsonl", ".json", ".parquet"):
            raise UserError(f"{file} is no plain text; data=hub data.path=FOLDER reads a folder of such files")
    return list(found)


def read_documents(files: Sequence[Path]) -> Dataset:
    """The files' texts as a dataset on disk, a row each; read again when a file's content has changed.

    Raises:
        UserError: there is no file, or one cannot be read or is not UTF-8.
    """
    if not files:
        raise UserError("there are no files to read, or data.val_fraction leaves none for training or for validation")
    content = hashlib.sha256()
    for file in files:
        content.update(hashlib.sha256(_read_bytes(file)).digest())
    try:
        return Dataset.from_generator(
            _rows, gen_kwargs={"files": files}, features=TEXT, fingerprint=content.hexdigest()[:16]
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _rows(files: Sequence[Path]) -> Iterator[dict[str, str]]:
    for file in files:
        yield {"text": read_text(file)}


def read_text(file: Path) -> str:
    """A file's text; line ends become \\n, a byte-order mark is dropped.

    Raises:
        UserError: the file cannot be read or is not UTF-8; the place is named.
    """
    data = _read_bytes(file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}, line {line};"
            " convert it, or leave it out by a glob such as 'FOLDER/**/*.txt'"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
