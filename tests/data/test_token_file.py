import pickle
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from tinygpt.data.token_file import TokenFile, encode
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
