"""The Hub source on local folders in the Hub's layout; `datasets` treats both alike once a dataset is found."""

import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from tests.test_conf import compose
from tinygpt.config import build
from tinygpt.data.corpus import rows, texts
from tinygpt.data.hub import Hub
from tinygpt.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three splits in Parquet, two columns."""
    root = tmp_path / "dataset"
    root.mkdir()
    for split, column in {"train": ["a", None, "b"], "validation": ["c"], "test": ["d"]}.items():
        data = Dataset.from_dict({"text": column, "title": [f"title {row}" for row in column]})
        data.to_parquet(str(root / f"{split}-00000-of-00001.parquet"))
    return root


def split_texts(hub: Hub) -> tuple[list[str], list[str]]:
    splits = hub.splits()
    return list(texts(splits.train)), list(texts(splits.validation))


def test_a_validation_split_is_used_and_null_rows_are_left_out(folder: Path):
    assert split_texts(Hub(path=str(folder))) == (["a", "b"], ["c"])


def test_splits_and_columns_are_chosen(folder: Path):
    hub = Hub(path=str(folder), split="train", val_split="validation+test", text_column="title")
    assert split_texts(hub) == (["title a", "title None", "title b"], ["title c", "title d"])


def test_no_document_is_trained_on_and_validated_on(folder: Path):
    assert split_texts(Hub(path=str(folder), split="validation", val_fraction=0.01)) == (["c"], [])
    train, validation = split_texts(Hub(path=str(folder), split="train+validation", val_fraction=0.01))
    assert (train, validation) == (["a", "b", "c"], [])
    with pytest.raises(UserError, match="data.split and data.val_split both name test; name other parts"):
        Hub(path=str(folder), split="train+test", val_split="validation+test").splits()


def test_a_parquet_file_is_read_without_being_kept_in_memory(tmp_path: Path):
    text = random.Random(0).randbytes(2**19).hex()
    schema = pa.schema({"text": pa.string()})
    root = tmp_path / "dataset"
    root.mkdir()
    with pq.ParquetWriter(root / "train.parquet", schema) as file:
        for number in range(24):  # row groups of 2 MB
            file.write_table(pa.table({"text": [f"{number} {text}"] * 2}, schema))
    tracemalloc.start()  # what is read of the file is Python's memory
    try:
        assert len(Hub(path=str(root)).splits().train) == 43
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6


def test_a_damaged_file_is_told_with_its_cause(folder: Path):
    file = next(folder.glob("train-*"))
    data = bytearray(file.read_bytes())
    data[4:60] = b"x" * 56  # its first page
    file.write_bytes(data)
    with pytest.raises(UserError, match="data.path=.* cannot be read: .+") as error:
        Hub(path=str(folder)).splits()
    assert "An error occurred while generating" not in str(error.value)


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


# Each named dataset's files and configurations as they lie on the Hub, with a row or two in each.
STORY, PAGE = "Once upon a time there was a pumpkin.\nIt was very special.", "A page.\n\nOf two paragraphs."
LAYOUTS = {
    "tiny_stories": {
        "data/train-00000-of-00002-2d5a1467fff1081b.parquet": {"text": [STORY]},
        "data/train-00001-of-00002-5852b56a2bd28fd9.parquet": {"text": [STORY + "!"]},
        "data/validation-00000-of-00001-869c898b519ad725.parquet": {"text": ["The end."]},
    },
    "wikitext": {
        f"{name}/{split}-00000-of-00001.parquet": {"text": ["", f" = {name} {split} = \n", "", " A line . \n"]}
        for name in ("wikitext-103-raw-v1", "wikitext-2-raw-v1", "wikitext-2-v1")
        for split in ("test", "train", "validation")
    },
    "fineweb_edu": {
        "sample/10BT/000_00000.parquet": {
            "text": [f"{PAGE} {i}" for i in range(30)],
            "id": [f"<urn:uuid:{i}>" for i in range(30)],
            "score": [2.5] * 30,
        },
        "data/CC-MAIN-2024-10/train-00000-of-00020.parquet": {
            "text": ["not in the sample"],
            "id": ["0"],
            "score": [3.0],
        },
    },
    "openwebtext": {
        f"plain_text/train-0000{i}-of-00080.parquet": {"text": [f"{PAGE} {i} {j}" for j in range(15)]} for i in range(2)
    },
    "tiny_shakespeare": {
        f"data/{split}-00000-of-00001.parquet": {"text": [f"{split}: To be, or not to be\n"]}
        for split in ("train", "validation", "test")
    },
}
CARDS = {
    "wikitext": "\n".join(
        f"- config_name: {name}\n  data_files:\n"
        + "\n".join(f"  - split: {split}\n    path: {name}/{split}-*" for split in ("test", "train", "validation"))
        for name in ("wikitext-103-raw-v1", "wikitext-2-raw-v1", "wikitext-2-v1")
    ),
    "fineweb_edu": "- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
    "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*",
    "openwebtext": "- config_name: plain_text\n  data_files:\n  - split: train\n    path: plain_text/train-*",
}


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A local copy of a named dataset."""
    root = tmp_path / request.param
    for name, columns in LAYOUTS[request.param].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_dict(columns).to_parquet(str(root / name))
    if request.param in CARDS:
        (root / "README.md").write_text(f"---\nconfigs:\n{CARDS[request.param]}\n---\n")
    return str(root)


def named(corpus: str, copy: str, **settings) -> Hub:
    cfg = compose(f"data={corpus}", f"data.path={copy}", *(f"data.{key}={value}" for key, value in settings.items()))
    return build(cfg, "data")


@pytest.mark.parametrize("copy", ["tiny_stories"], indirect=True)
def test_tiny_stories_brings_its_validation_split(copy: str):
    assert split_texts(named("tiny_stories", copy)) == ([STORY, STORY + "!"], ["The end."])


@pytest.mark.parametrize("copy", ["wikitext"], indirect=True)
def test_wikitext_is_one_running_text_of_the_chosen_configuration(copy: str):
    split = named("wikitext", copy).splits()
    assert list(rows(split.train)) == [(" = wikitext-2-raw-v1 train = \n", False), (" A line . \n", False)]
    assert next(texts(split.validation)) == " = wikitext-2-raw-v1 validation = \n"
    larger = named("wikitext", copy, name="wikitext-103-raw-v1").splits()
    assert next(texts(larger.train)) == " = wikitext-103-raw-v1 train = \n"


@pytest.mark.parametrize("copy", ["fineweb_edu", "openwebtext"], indirect=True)
def test_the_web_corpora_hold_out_a_seeded_share_of_their_pages(copy: str):
    name = Path(copy).name
    train, validation = split_texts(named(name, copy))
    assert len(validation) == 1
    assert len(train) == 29
    assert all(text.startswith(PAGE) for text in train + validation)
    assert split_texts(named(name, copy)) == (train, validation)
    assert len(split_texts(named(name, copy, val_fraction=0.2))[1]) == 6


@pytest.mark.parametrize("copy", ["tiny_shakespeare"], indirect=True)
def test_tiny_shakespeare_validates_on_its_last_tenth(copy: str):
    train, validation = split_texts(named("tiny_shakespeare", copy))
    assert [text.split(":")[0] for text in train] == ["train"]
    assert [text.split(":")[0] for text in validation] == ["validation", "test"]


def test_running_text_without_a_validation_split_is_cut_at_its_end(tmp_path: Path):
    root = tmp_path / "dataset"
    root.mkdir()
    Dataset.from_dict({"text": ["one \n", "two \n", "three \n", None]}).to_parquet(str(root / "train.parquet"))
    split = Hub(path=str(root), running_text=True, val_fraction=0.5).splits()
    assert list(rows(split.train)) == [("one \n", False), ("two", True)]
    assert list(rows(split.validation)) == [(" \n", False), ("three \n", False)]


def test_a_folder_whose_files_are_all_of_the_test_split_says_so(tmp_path: Path):
    root = tmp_path / "dataset"
    root.mkdir()
    Dataset.from_dict({"text": ["a", "b"]}).to_parquet(str(root / "latest_test.parquet"))
    with pytest.raises(UserError, match=r"split.*test"):
        Hub(path=str(root)).splits()
    assert split_texts(Hub(path=str(root), split="test", val_fraction=0.5)) == ([], ["a", "b"])
