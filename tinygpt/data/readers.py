"""The reading of files, by what they are: plain text, JSON lines, Parquet; streamed, whatever their size."""

import codecs
import glob
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from tinygpt.errors import UserError, one_line
from tinygpt.tokenizers.base import last_safe_cut

VERSION = 1  # of the reading: raise it when the same files become other rows
ROWS = Features({"text": Value("large_string"), "end": Value("bool")})  # see `Splits`
# In a dataset on disk: to open one is to touch each batch of it, and what lies around that becomes resident.
ROWS_AT_A_TIME, PIECES_AT_A_TIME = 10_000, 16
PIECE = 2**20  # characters of a plain text in a row, about
LONGEST_PIECE = 16 * PIECE  # a text without any white space is cut all the same

Rows = Iterator[tuple[str, bool]]  # texts, and whether a document ends with them


def find_files(patterns: str | Sequence[str]) -> list[Path]:
    """The files that names, folders and glob patterns stand for: in order, sorted within each, each file once.

    Raises:
        UserError: one of them stands for no file, or there is none of them.
    """
    found: dict[Path, Path] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
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
        for file in files:
            found.setdefault(file.resolve(), file)
    if not found:
        raise UserError("data.files names no file; name files, a folder or a glob pattern")
    return list(found.values())


def read_documents(files: Sequence[Path], *, text_column: str = "text", lines: bool = False) -> Dataset:
    """The files' documents as a dataset on disk (see `Splits`), read again when a file's content has changed.

    A `.jsonl`, `.ndjson` or `.parquet` file has a document in each row, another file is one document. With `lines`
    every file is plain text with a document in each line.

    Args:
        files: where they lie, at least one.
        text_column: what holds the text in files with rows.
        lines: a document a line.

    Raises:
        UserError: one cannot be read as what it is, or there is no text in them; the place is named.
    """
    content = hashlib.sha256(f"{VERSION} {[file.suffix for file in files]} {text_column} {lines}".encode())
    for file in files:
        try:
            with file.open("rb") as opened:
                content.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}") from error
    plain = not lines and any(file.suffix.lower() not in READERS for file in files)
    try:
        return Dataset.from_generator(
            _rows_of_files,
            gen_kwargs={"files": tuple(files), "text_column": text_column, "lines": lines},
            features=ROWS,
            fingerprint=content.hexdigest()[:16],
            writer_batch_size=PIECES_AT_A_TIME if plain else ROWS_AT_A_TIME,
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def _rows_of_files(files: Sequence[Path], text_column: str, lines: bool) -> Iterator[dict[str, str | bool]]:
    found = False
    for file in files:
        if lines:
            rows = _rows_of_text(file, _lines)
        elif file.suffix.lower() in READERS:
            rows = READERS[file.suffix.lower()](file, text_column)
        else:
            rows = _rows_of_text(file, _pieces)
        for text, end in rows:
            if text:
                found = True
                yield {"text": text, "end": end}
    if not found:
        raise UserError(f"there is no text in {', '.join(map(str, files[:3]))}{' …' if len(files) > 3 else ''}")


def _rows_of_text(file: Path, cut: Callable[[TextIO], Rows]) -> Rows:
    """Plain text; line ends become \\n, a byte-order mark is dropped."""
    try:
        with file.open(encoding="utf-8-sig") as opened:  # universal newlines
            yield from cut(opened)
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(file)) from error


def _not_utf8(file: Path) -> str:
    """The message for a file that is not UTF-8, with the place of the first wrong byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line = 0, 1
    with file.open("rb") as opened:
        while True:
            block = opened.read(PIECE)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                start = offset + len(block) - len(error.object) + error.start  # the decoder keeps half characters
                line += error.object.count(b"\n", 0, error.start)
                return (
                    f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {start}, line {line};"
                    " convert it, or leave it out by a glob such as 'FOLDER/**/*.txt'"
                )
            offset, line = offset + len(block), line + block.count(b"\n")


def _pieces(opened: TextIO) -> Rows:
    """One document, in pieces; where they are parted changes no token of byte-level BPE with GPT-2's words."""
    rest = ""
    while block := opened.read(PIECE):
        rest += block
        if len(block) == PIECE:  # there may be more
            cut = last_safe_cut(rest) or (len(rest) - 1 if len(rest) > LONGEST_PIECE else 0)
            if cut:
                yield rest[:cut], False
            rest = rest[cut:]
    if rest:
        yield rest, True


def _lines(opened: TextIO) -> Rows:
    """A document in each line; of all characters only \\n, \\r and \\r\\n end one."""
    return ((line.removesuffix("\n"), True) for line in opened)


def _rows_of_json(file: Path, column: str) -> Rows:
    """A JSON object in each line; null, or nothing, where the text should be makes a row without text."""
    keys: set[str] | None = None
    for number, (line, _) in enumerate(_rows_of_text(file, _lines), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            raise UserError(f"{file}, line {number}, is not JSON: {error.msg}; each line is an object") from error
        if row is None:
            continue
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number}, is no JSON object; each line is one, with the key {column!r}")
        if keys is None or column in row:
            keys = set(row)
        text = row.get(column)
        if text is None:
            continue
        if not isinstance(text, str):
            raise UserError(f"{file}, line {number}, has no text in {column!r} but {type(text).__name__}")
        yield text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), True  # no half pairs
    if keys is not None and column not in keys:
        raise UserError(missing_column(str(file), column, sorted(keys)))


def _rows_of_parquet(file: Path, column: str) -> Rows:
    try:
        with pq.ParquetFile(file) as opened:
            check_column(str(file), column, Features.from_arrow_schema(opened.schema_arrow))
            for batch in opened.iter_batches(batch_size=256, columns=[column]):
                yield from ((text, True) for text in batch.column(column).to_pylist() if text is not None)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a Parquet file, or it is damaged: {one_line(error)}") from error


READERS = {".jsonl": _rows_of_json, ".ndjson": _rows_of_json, ".parquet": _rows_of_parquet}


def check_column(where: str, column: str, features: Features) -> None:
    """Raise UserError unless the column exists and holds text."""
    if column not in features:
        raise UserError(missing_column(where, column, list(features)))
    kind = getattr(features[column], "dtype", "nested")
    if kind not in ("string", "large_string"):
        raise UserError(f"{where} has no text in column {column!r}, its values are {kind}")


def missing_column(where: str, column: str, columns: list[str]) -> str:
    """The message for a column that does not exist."""
    return f"{where} has no column {column!r}; data.text_column is one of {', '.join(columns)}"
