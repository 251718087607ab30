"""What all corpora share: rows and documents, and holding some of them out."""

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

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


def test_slices_are_bounded_also_where_rows_are_of_very_unequal_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "SLICE", 1000)
    documents = Dataset.from_dict({"text": ["x" * n for n in [1] * 3000 + [900] * 5 + [5000] + [1] * 100]})
    sizes = [sum(map(len, part["text"])) for part in slices(documents)]
    assert sum(sizes) == 3000 + 4500 + 5000 + 100
    assert sorted(sizes)[-2:] == [1000, 5000]


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


@given(n=st.integers(20, 300), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 5))
def test_every_share_of_every_number_of_documents_can_be_held_out(n: int, fraction: float, seed: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "RUNS", 7)
        split = hold_out(Dataset.from_dict({"text": [str(i) for i in range(n)]}), fraction, seed)
    train, validation = list(split.train["text"]), list(split.validation["text"])
    assert len(validation) == min(max(1, round(n * fraction)), n - 1)
    assert train == sorted(train, key=int)
    assert sorted([*train, *validation], key=int) == [str(i) for i in range(n)]


def test_runs_of_documents_come_from_all_over_the_corpus_in_a_drawn_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "RUNS", 5)
    validation = hold_out(Dataset.from_dict({"text": [str(i) for i in range(1000)]}), 0.1).validation
    firsts = [int(text) for text in validation["text"]][::20]
    assert sorted(first // 200 for first in firsts) == [0, 1, 2, 3, 4]
    assert firsts != sorted(firsts)


def test_documents_without_text_do_not_count():
    documents = Dataset.from_dict({"text": [None] * 16 + ["abcdefghij"] * 4})
    split = hold_out(documents, 0.1)  # four are few
    assert list(texts(split.validation)) == ["j"] * 4
    for nothing in ([], [None], [""] * 50):
        with pytest.raises(UserError, match="the corpus has no documents with text"):
            hold_out(Dataset.from_dict({"text": nothing}), 0.1)


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
