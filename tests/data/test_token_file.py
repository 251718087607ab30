import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from filelock import FileLock

from tinygpt.data import corpus, encoding
from tinygpt.data.encoding import encode
from tinygpt.data.token_file import TokenFile
from tinygpt.errors import UserError
from tinygpt.tokenizers import ByteTokenizer, CharTokenizer


def documents(*texts: str | None) -> Dataset:
    return Dataset.from_dict({"text": list(texts)})


def test_documents_are_parted_by_the_end_of_text(tmp_path: Path):
    file = encode(documents("ab", "c"), CharTokenizer("abc"), tmp_path)
    assert file.ids.tolist() == [3, 0, 1, 3, 2, 3]
    assert (file.n_documents, file.n_bytes, file.dtype) == (2, 3, np.uint8)


def test_ids_above_65535_are_kept(tmp_path: Path):
    characters = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    file = encode(documents(characters[-2:]), CharTokenizer(characters), tmp_path)
    assert file.ids.tolist() == [70_000, 69_998, 69_999, 70_000]
    assert file.dtype == np.uint32


def test_the_same_documents_and_tokenizer_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = encode(documents("ab"), ByteTokenizer(), tmp_path)
    monkeypatch.setattr(ByteTokenizer, "encode", lambda *_: pytest.fail("encoded again"))
    assert encode(documents("ab"), ByteTokenizer(), tmp_path).path == first.path


@pytest.mark.parametrize("damage", [b"", b"{", b"no header at all", None])
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: bytes | None):
    file = encode(documents("ab" * 500), ByteTokenizer(), tmp_path)
    ids = file.ids.tolist()
    file.path.write_bytes(file.path.read_bytes()[:-1] if damage is None else damage)
    assert encode(documents("ab" * 500), ByteTokenizer(), tmp_path).ids.tolist() == ids


def test_another_text_or_tokenizer_has_another_file(tmp_path: Path):
    files = [
        encode(documents("ab"), ByteTokenizer(), tmp_path),
        encode(documents("abc"), ByteTokenizer(), tmp_path),
        encode(documents("ab"), CharTokenizer("ab"), tmp_path),
        encode(documents("ab"), CharTokenizer("ab", "skip"), tmp_path),
    ]
    assert len({file.path for file in files}) == 4


def test_a_failure_leaves_no_file(tmp_path: Path):
    with pytest.raises(Exception, match="not in the vocabulary"):
        encode(documents("ab", "xyz"), CharTokenizer("ab"), tmp_path)
    assert list(tmp_path.glob("*.tokens")) == []
    assert list(tmp_path.glob("*.unfinished")) == []


def test_bytes_per_id_are_the_tokenizers_where_every_character_is_known(tmp_path: Path):
    tokenizer = CharTokenizer("aé李")
    file = encode(documents("aé", "李"), tokenizer, tmp_path)
    assert file.bytes_per_id(tokenizer.n_bytes).tolist() == tokenizer.n_bytes.tolist() == [1, 2, 3, 0, 3]


@pytest.mark.parametrize("unknown", ["skip", "replace"])
def test_bytes_of_dropped_and_replaced_characters_count_too(tmp_path: Path, unknown):
    tokenizer = CharTokenizer("a", unknown)
    file = encode(documents("aéa李"), tokenizer, tmp_path)
    assert file.bytes_per_id(tokenizer.n_bytes)[file.ids].sum() == pytest.approx(len("aéa李".encode()))


def test_a_pickled_token_file_carries_its_path_alone(tmp_path: Path):
    file = encode(documents("ab" * 10_000), ByteTokenizer(), tmp_path)
    assert len(file.ids) == 20_002
    pickled = pickle.dumps(file)
    assert len(pickled) < 1_000
    copy = pickle.loads(pickled)
    assert isinstance(copy, TokenFile)
    assert np.array_equal(copy.ids, file.ids)


def many(n: int = 60) -> Dataset:
    """Documents of one to three rows, some rows without text."""
    rows = [None if i % 7 == 0 else f"row {i} " * (i % 5) for i in range(n)]
    return Dataset.from_dict({"text": rows, "end": [bool(row) and i % 3 == 2 for i, row in enumerate(rows)]})


def expected(data: Dataset) -> list[int]:
    ids = [256]
    for row in data:
        ids += [*(row["text"] or "").encode(), *([256] if row["end"] else [])]
    return ids if ids[-1] == 256 and len(ids) > 1 else [*ids, 256]


@pytest.mark.parametrize("n", [2, 3, 58, 60])
def test_documents_of_several_rows_end_where_they_say_or_with_the_last(tmp_path: Path, n: int):
    data = many(n)
    file = encode(data, ByteTokenizer(), tmp_path)
    assert file.ids.tolist() == expected(data)
    assert file.n_documents == file.ids.tolist().count(256) - 1
    assert file.n_bytes == sum(i != 256 for i in file.ids.tolist())


def test_several_processes_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "SLICE", 200)
    one = encode(many(), ByteTokenizer(), tmp_path / "one")
    two = encode(many(), ByteTokenizer(), tmp_path / "two", num_proc=2)
    assert two.path.read_bytes() == one.path.read_bytes()
    assert not multiprocessing.active_children()
    assert [path.suffix for path in (tmp_path / "two").iterdir() if path.suffix != ".lock"] == [".tokens"]


def test_a_text_that_a_tokenizer_refuses_in_another_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "SLICE", 200)
    with pytest.raises(UserError, match="'x' is not in the vocabulary"):
        encode(documents(*["ab"] * 50, "x", *["ab"] * 50), CharTokenizer("ab"), tmp_path, num_proc=2)
    assert not multiprocessing.active_children()


# Encodes, and is killed in the middle of writing: at the n-th time that it flushes to the disk.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.data.test_token_file import many
from tinygpt.data import corpus, encoding
from tinygpt.tokenizers import ByteTokenizer

def fsync(descriptor, calls=[]):
    calls.append(1)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

corpus.SLICE = 200
os.fsync = fsync
if __name__ == "__main__":
    encoding.encode(many(), ByteTokenizer(), Path(sys.argv[1]), num_proc=int(sys.argv[3]))
"""


def kill(directory: Path, flush: int, num_proc: int) -> None:
    """Run KILLED, and wait until it and the processes that it started are gone."""
    script = directory.parent / "killed.py"
    script.write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script), str(directory), str(flush), str(num_proc)]
    # The pipe ends when the last process that holds it does: one that lived on would keep this waiting.
    killed = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=60)
    assert killed.returncode == -signal.SIGKILL


def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "SLICE", 200)
    kill(tmp_path / "cache", 3, num_proc=2)
    assert encode(many(), ByteTokenizer(), tmp_path / "cache").ids.tolist() == expected(many())


@pytest.mark.parametrize("flush", [1, 2, 4, 5, 6])  # the sixth is the last, of the whole file
def test_what_a_killed_process_leaves_is_gone_on_with(tmp_path: Path, flush: int, monkeypatch: pytest.MonkeyPatch):
    kill(tmp_path, flush, num_proc=1)
    (left,) = tmp_path.glob("*.unfinished")
    assert not list(tmp_path.glob("*.tokens"))

    monkeypatch.setattr(corpus, "SLICE", 200)
    encoded: list[str] = []
    original = ByteTokenizer.encode
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: encoded.append(text) or original(self, text))
    file = encode(many(), ByteTokenizer(), tmp_path)
    assert file.ids.tolist() == expected(many())
    assert not left.exists()
    n_texts = sum(1 for _ in corpus.texts(many()))
    assert len(encoded) == n_texts if flush <= 2 else len(encoded) < n_texts


@pytest.mark.parametrize("garbage", [b"", b"no header" * 500, b"[3]", b'{"n_ids": 3}', None])
def test_an_unfinished_file_that_makes_no_sense_is_begun_again(tmp_path: Path, garbage: bytes | None):
    path = encode(many(), ByteTokenizer(), tmp_path).path
    whole = path.read_bytes()
    path.unlink()
    shorter = whole[:-1]  # than its header says
    path.with_name(path.name + ".unfinished").write_bytes(shorter if garbage is None else garbage)
    assert encode(many(), ByteTokenizer(), tmp_path).path.read_bytes() == whole


def test_the_lock_is_free_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    locks: list[FileLock] = []
    monkeypatch.setattr(encoding, "FileLock", lambda path: locks.append(FileLock(path)) or locks[-1])
    encode(many(), ByteTokenizer(), tmp_path)
    with pytest.raises(UserError):
        encode(documents("x"), CharTokenizer("ab"), tmp_path)
    assert [lock.is_locked for lock in locks] == [False, False]


def test_two_at_once_make_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoded: list[str] = []
    original = ByteTokenizer.encode
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: encoded.append(text) or original(self, text))
    found: list[TokenFile] = []
    threads = [
        threading.Thread(target=lambda: found.append(encode(many(), ByteTokenizer(), tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.ids.tolist() for file in found] == [expected(many())] * 3
    assert len(encoded) == sum(1 for _ in corpus.texts(many()))
