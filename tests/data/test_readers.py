"""Finding files and reading them: the same text out of every form that it may have."""

import json
from pathlib import Path

import pytest
from datasets import Dataset

from tinygpt.data import readers
from tinygpt.data.corpus import rows, texts
from tinygpt.data.lines import Lines
from tinygpt.data.readers import find_files, read_documents
from tinygpt.data.text_files import TextFiles
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


def read(path: Path, **options) -> list[str]:
    return list(texts(read_documents([path], **options)))


def test_a_folder_a_glob_and_a_list_name_every_file_once(folder: Path):
    assert names(find_files(str(folder)), folder) == ["[e].txt", "a.txt", "b.txt", "more/c.md"]
    assert names(find_files(f"{folder}/*.txt"), folder) == ["[e].txt", "a.txt", "b.txt"]
    assert names(find_files([f"{folder}/**/*.md"]), folder) == ["more/c.md"]
    assert len(find_files([str(folder), f"{folder}/more/../a.txt"])) == 4
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
        find_files(pattern)
    with pytest.raises(UserError, match="data.files holds an empty name"):
        find_files([""])


def test_few_files_are_cut_and_many_are_parted(folder: Path, tmp_path: Path):
    split = TextFiles(files=str(folder), val_fraction=0.2).splits()
    assert list(texts(split.validation)) == ["txt", "txt", "txt", ".md"]
    many = tmp_path / "many"
    many.mkdir()
    for i in range(40):
        (many / f"{i}.txt").write_text(f"text {i}")
    split = TextFiles(files=str(many), val_fraction=0.25).splits()
    assert len(list(texts(split.validation))) == 10
    assert sorted([*texts(split.train), *texts(split.validation)]) == sorted(f"text {i}" for i in range(40))


def test_a_file_name_says_nothing_about_the_split(tmp_path: Path):
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("contest.txt", "test.txt", "validation-notes.txt", "train.jsonl", "test.parquet"):
        (folder / name).write_text(
            json.dumps({"text": "words of train.jsonl"}) if "json" in name else f"words of {name}"
        )
    Dataset.from_dict({"text": ["words of test.parquet"]}).to_parquet(str(folder / "test.parquet"))
    split = TextFiles(files=str(folder), val_fraction=0.5).splits()
    whole = [a + b for a, b in zip(texts(split.train), texts(split.validation), strict=True)]
    assert whole == [f"words of {path.name}" for path in sorted(folder.iterdir())]


def test_line_ends_and_byte_order_marks_are_not_text(tmp_path: Path):
    file = tmp_path / "windows.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read(file) == ["one\ntwo\nthree\n"]
    assert read(file, lines=True) == ["one", "two", "three"]


def test_only_line_ends_end_a_line(tmp_path: Path):
    file = tmp_path / "separators.txt"
    text = "one\u2028two\u2029three\x0bfour\x0cfive\x1csix\x85seven"
    file.write_text(f"{text}\n\n  \nnext\n", encoding="utf-8")
    assert read(file) == [f"{text}\n\n  \nnext\n"]
    assert read(file, lines=True) == [text, "  ", "next"]
    rows_file = tmp_path / "separators.jsonl"
    rows_file.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read(rows_file) == [text]


def test_json_lines_are_read_whatever_their_form(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"content": "caf\\u00e9 \xc3\xa9", "id": 1}\r\n'
        b'{"content": null}\r\n\r\nnull\r\n{"id": 2}\r\n{"content": ""}\r\n'
        b'{"content": "a\\r\\nb \\ud83d\\ude42 \\ud800"}'
    )
    assert read(file, text_column="content") == ["café é", "a\r\nb 🙂 \ufffd"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{'text': 'python'}", r"rows\.jsonl, line 2, is not JSON: .*; each line is an object"),
        ('["a", "b"]', r"rows\.jsonl, line 2, is no JSON object; each line is one, with the key 'text'"),
        ('{"text": 3}', r"rows\.jsonl, line 2, has no text in 'text' but int"),
        ('{"text": "caf\udce9"}', r"rows\.jsonl is not UTF-8 text: byte 0xe9 at offset 31, line 2"),
    ],
)
def test_a_wrong_json_line_is_named(tmp_path: Path, line: str, words: str):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(f'{{"text": "right"}}\n{line}\n'.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=words):
        read_documents([file])


def test_parquet_rows_are_documents_and_null_ones_are_left_out(tmp_path: Path):
    file = tmp_path / "rows.parquet"
    Dataset.from_dict({"body": ["a\r\nb", None, "", "c"], "n": [1, 2, 3, 4]}).to_parquet(str(file))
    assert read(file, text_column="body") == ["a\r\nb", "c"]
    with pytest.raises(UserError, match=r"rows\.parquet has no text in column 'n', its values are int64"):
        read_documents([file], text_column="n")
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="is not a Parquet file, or it is damaged"):
        read_documents([file])


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_missing_column_names_those_that_exist(tmp_path: Path, name: str):
    file = tmp_path / name
    file.write_text('{"content": "a", "title": "b"}\n')
    if name.endswith("parquet"):
        Dataset.from_dict({"content": ["a"], "title": ["b"]}).to_parquet(str(file))
    with pytest.raises(UserError, match=f"{name} has no column 'text'; data.text_column is one of content, title"):
        TextFiles(files=str(file)).splits()


def test_an_empty_file_beside_others_is_no_document(tmp_path: Path):
    (tmp_path / "a.txt").write_text("text")
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).touch()
    files = [tmp_path / name for name in ("empty.txt", "a.txt", "empty.jsonl")]
    assert list(rows(read_documents(files))) == [("text", True)]
    with pytest.raises(UserError, match=r"there is no text in .*empty\.txt"):
        TextFiles(files=str(files[0])).splits()
    with pytest.raises(UserError, match=r"there is no text in .*empty\.txt"):
        Lines(files=str(files[0])).splits()


@pytest.mark.parametrize("text", ["one two\n  three 李明\n\nfour " * 20, "nowhitespace" * 50])
def test_a_large_file_is_one_document_in_pieces(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "PIECE", 16)
    monkeypatch.setattr(readers, "LONGEST_PIECE", 64)
    file = tmp_path / "large.txt"
    file.write_text(text, encoding="utf-8")
    pieces = list(rows(read_documents([file, file])))
    assert len(pieces) > 12
    assert "".join(piece for piece, _ in pieces) == text * 2
    assert [end for _, end in pieces] == ([False] * (len(pieces) // 2 - 1) + [True]) * 2


def test_a_file_is_read_as_what_its_name_says(tmp_path: Path):
    loud, pretty = tmp_path / "ROWS.NDJSON", tmp_path / "package.json"
    loud.write_text('{"text": "a row"}\n')
    pretty.write_text('{\n  "name": "x"\n}')
    assert list(texts(read_documents([loud, pretty]))) == ["a row", '{\n  "name": "x"\n}']
    assert read(loud, lines=True) == ['{"text": "a row"}']


def test_other_reading_is_another_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.txt"
    file.write_text("text")
    before = read_documents([file])
    monkeypatch.setattr(readers, "VERSION", readers.VERSION + 1)
    assert read_documents([file])._fingerprint != before._fingerprint


def test_a_changed_file_is_read_again(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_text("before")
    assert read(file) == ["before"]
    file.write_text("after!")
    assert read(file) == ["after!"]


def test_a_file_that_is_not_utf8_is_named_with_the_place(tmp_path: Path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("fine")
    bad.write_bytes(b"line one\ncaf\xe9\n")
    for corpus in (TextFiles, Lines):
        with pytest.raises(UserError, match=r"bad\.txt is not UTF-8 text: byte 0xe9 at offset 12, line 2"):
            corpus(files=[str(good), str(bad)]).splits()


@pytest.mark.parametrize(
    ("data", "byte", "offset", "line"),
    [
        (b"\n\n" + "é".encode() * 9 + b"\xff", "ff", 20, 3),
        (b"ab\nc" + "李".encode()[:2], "e6", 4, 2),  # cut off at the end
        (b"1234567" + "李".encode()[:1] + b"\n", "e6", 7, 1),
    ],
)
def test_a_wrong_byte_is_found_wherever_the_blocks_end(
    tmp_path: Path, data: bytes, byte: str, offset: int, line: int, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "bad.txt"
    file.write_bytes(data)
    for size in range(1, 9):
        monkeypatch.setattr(readers, "PIECE", size)
        assert f"byte 0x{byte} at offset {offset}, line {line};" in readers._not_utf8(file)
