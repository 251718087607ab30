"""What all corpora share: rows and documents, and holding some of them out."""

import pytest
from datasets import Dataset

from tinygpt.data import corpus
from tinygpt.data.corpus import hold_out, rows, slices, texts
from tinygpt.data.text_files import TextFiles
from tinygpt.errors import UserError


def test_rows_without_text_are_left_out():
    assert list(rows(Dataset.from_dict({"text": ["a", None, "", "b"]}))) == [("a", True), ("b", True)]
    pieces = Dataset.from_dict({"text": ["a", "b", "c"], "end": [False, True, False]})
    assert list(rows(pieces)) == [("a", False), ("b", True), ("c", False)]


def test_slices_hold_all_rows_in_order_and_begin_where_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "SLICE", 40)
    documents = Dataset.from_dict({"text": [f"text {i:02d}" for i in range(50)]})
    for part in (documents, documents.select([3, 1, 4, 1, 5] * 10)):
        assert sum(1 for _ in slices(part)) > 5
        assert [row["text"] for piece in slices(part) for row in piece] == list(part["text"])
        assert [row["text"] for piece in slices(part, first=7) for row in piece] == list(part["text"])[7:]


def test_of_few_documents_each_ones_end_is_held_out():
    split = hold_out(Dataset.from_dict({"text": ["abcdefghij", None, "klmno"]}), 0.2)
    assert list(texts(split.train)) == ["abcdefgh", "klmn"]
    assert list(texts(split.validation)) == ["ij", "o"]


@pytest.mark.parametrize(
    ("fraction", "train", "validation"),
    [
        (0.01, "abcdefghijklmnopqrst|xyz|", ""),
        (0.1, "abcdefghijklmnopqr|xyz|", "st|"),
        (0.25, "abcdefghijklmno|xy|", "pqrst|z|"),
        (0.5, "abcdefghij|xy|", "klmnopqrst|z|"),
        (0.6, "abcdefgh|x|", "ijklmnopqrst|yz|"),
        (0.99, "", "abcdefghijklmnopqrst|xyz|"),
    ],
)
def test_a_document_of_many_rows_is_cut_at_the_character(fraction: float, train: str, validation: str):
    pieces = Dataset.from_dict({"text": ["abcdefghij", "klm", "nopqrst", "xyz"], "end": [False, False, True, True]})
    split = hold_out(pieces, fraction)
    assert "".join(text + "|" * end for text, end in rows(split.train)) == train
    assert "".join(text + "|" * end for text, end in rows(split.validation)) == validation


def test_of_many_documents_a_seeded_share_is_held_out_whole():
    pieces = Dataset.from_dict({"text": [f"{i // 2} " for i in range(80)], "end": [i % 2 == 1 for i in range(80)]})
    split = hold_out(pieces, 0.25)
    validation = [text for text, _ in rows(split.validation)]
    assert len(set(validation)) == 10
    assert all(validation.count(text) == 2 for text in validation)  # both rows of a document
    assert sorted([*validation, *texts(split.train)]) == sorted(pieces["text"])
    assert list(rows(hold_out(pieces, 0.25).validation)) == list(rows(split.validation))
    assert list(rows(hold_out(pieces, 0.25, seed=1).validation)) != list(rows(split.validation))


def test_a_corpus_without_documents_is_an_error():
    with pytest.raises(UserError, match="the corpus has no documents"):
        hold_out(Dataset.from_dict({"text": []}), 0.1)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"val_fraction": 1.0}, "val_fraction must lie between 0 and 1, got 1.0"),
        ({"max_val_tokens": 0}, "max_val_tokens must be at least 1, or null for all, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"num_proc": 0}, "num_proc must be at least 1, got 0"),
        ({"layout": "rows"}, "layout must be one of windows, padded, packed, got 'rows'"),
        ({"long_documents": "drop"}, "long_documents must be one of cut, truncate, got 'drop'"),
        ({"long_documents": "truncate"}, "long_documents=truncate needs layout=padded or layout=packed"),
    ],
)
def test_impossible_settings_are_refused(keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        TextFiles(files="a.txt", **keywords)
