"""The Hub source on local folders in the Hub's layout; `datasets` treats both alike once a dataset is found."""

from pathlib import Path

import pytest
from datasets import Dataset

from tinygpt.data.corpus import texts
from tinygpt.data.hub import Hub
from tinygpt.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three splits in Parquet, two columns."""
    root = tmp_path / "dataset"
    root.mkdir()
    for split, rows in {"train": ["a", None, "b"], "validation": ["c"], "test": ["d"]}.items():
        data = Dataset.from_dict({"text": rows, "title": [f"title {row}" for row in rows]})
        data.to_parquet(str(root / f"{split}-00000-of-00001.parquet"))
    return root


def split_texts(hub: Hub) -> tuple[list[str], list[str]]:
    splits = hub.splits()
    return list(texts(splits.train)), list(texts(splits.validation))


def test_a_validation_split_is_used_and_null_rows_are_left_out(folder: Path):
    assert split_texts(Hub(path=str(folder))) == (["a", "b"], ["c"])


def test_splits_and_columns_are_chosen(folder: Path):
    hub = Hub(path=str(folder), split="test", val_split="validation+test", text_column="title")
    assert split_texts(hub) == (["title d"], ["title c", "title d"])


def test_without_a_validation_split_documents_are_held_out(tmp_path: Path):
    root = tmp_path / "dataset"
    root.mkdir()
    Dataset.from_dict({"text": [str(i) for i in range(20)]}).to_parquet(str(root / "train.parquet"))
    train, validation = split_texts(Hub(path=str(root), val_fraction=0.25))
    assert len(validation) == 5
    assert sorted([*train, *validation], key=int) == [str(i) for i in range(20)]
    assert split_texts(Hub(path=str(root), val_fraction=0.25)) == (train, validation)


def test_a_missing_column_names_those_that_exist(folder: Path):
    with pytest.raises(UserError, match="no column 'content'; data.text_column is one of text, title"):
        Hub(path=str(folder), text_column="content").splits()


@pytest.mark.parametrize("wrong", [{"path": "no/such-dataset"}, {"split": "training"}, {"name": "german"}])
def test_what_cannot_be_found_is_one_line(folder: Path, wrong: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="data.path=") as error:
        Hub(**{"path": str(folder)} | wrong).splits()
    assert "\n" not in str(error.value)
