from pathlib import Path

import pytest

from tinygpt.data.corpus import texts
from tinygpt.data.text_files import TextFiles, find_files, read_documents
from tinygpt.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "books"
    (root / "more").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for name in ("a.txt", "b.txt", "more/c.md", ".hidden/d.txt", "[e].txt"):
        (root / name).write_text(f"text of {name}")
    return root


def names(files: list[Path], root: Path) -> list[str]:
    return [file.relative_to(root).as_posix() for file in files]


def test_a_folder_a_glob_and_a_list_name_every_file_once(folder: Path):
    assert names(find_files([str(folder)]), folder) == ["[e].txt", "a.txt", "b.txt", "more/c.md"]
    assert names(find_files([f"{folder}/*.txt"]), folder) == ["[e].txt", "a.txt", "b.txt"]
    assert names(find_files([f"{folder}/**/*.md"]), folder) == ["more/c.md"]
    assert names(find_files([f"{folder}/b.txt", f"{folder}/[e].txt", str(folder)]), folder) == [
        "b.txt",
        "[e].txt",
        "a.txt",
        "more/c.md",
    ]


@pytest.mark.parametrize("pattern", ["missing.txt", "*.none", "."])
def test_a_name_without_files_is_an_error(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(UserError, match="there is no file"):
        find_files([pattern])


def test_of_few_files_each_ones_end_is_held_out(folder: Path):
    split = TextFiles(files=str(folder), val_fraction=0.2).splits()
    whole = [a + b for a, b in zip(texts(split.train), texts(split.validation), strict=True)]
    assert whole == ["text of [e].txt", "text of a.txt", "text of b.txt", "text of more/c.md"]
    assert list(texts(split.validation)) == ["txt", "txt", "txt", ".md"]


def test_of_many_files_a_share_is_held_out_whole(tmp_path: Path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"text {i}")
    split = TextFiles(files=str(folder), val_fraction=0.25).splits()
    train, validation = list(texts(split.train)), list(texts(split.validation))
    assert len(validation) == 10
    assert sorted([*train, *validation]) == sorted(f"text {i}" for i in range(40))


def test_an_empty_name_and_a_data_file_are_refused(folder: Path):
    with pytest.raises(UserError, match="data.files holds an empty name"):
        find_files([""])
    (folder / "rows.jsonl").write_text("{}")
    with pytest.raises(UserError, match="rows.jsonl is no plain text; data=hub"):
        find_files([str(folder)])


def test_line_ends_and_byte_order_marks_are_not_text(tmp_path: Path):
    file = tmp_path / "windows.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert list(texts(read_documents([file]))) == ["one\ntwo\nthree\n"]


def test_a_changed_file_is_read_again(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_text("before")
    assert list(texts(read_documents([file]))) == ["before"]
    file.write_text("after!")
    assert list(texts(read_documents([file]))) == ["after!"]


def test_a_file_that_is_not_utf8_is_named_with_the_place(tmp_path: Path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("fine")
    bad.write_bytes(b"line one\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"bad\.txt is not UTF-8 text: byte 0xe9 at offset 12, line 2"):
        TextFiles(files=[str(good), str(bad)]).splits()


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"val_fraction": 1.0}, "val_fraction must lie between 0 and 1, got 1.0"),
        ({"max_val_tokens": 0}, "max_val_tokens must be at least 1, or null for all, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
    ],
)
def test_impossible_settings_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        TextFiles(files="a.txt", **keywords)
