"""Damaged, hostile and foreign files: a named error, or exactly what was written; never a wrong model in silence."""

import os
import pickle
import random
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from benchmarks.survival import result
from tests.conftest import TINY, save
from tinygpt import checkpoint
from tinygpt.data.encoding import encode
from tinygpt.errors import UserError
from tinygpt.model import GPT
from tinygpt.tokenizers import BPETokenizer, ByteTokenizer, PretrainedTokenizer, Tokenizer
from tinygpt.tokenizers.file import read_file, write_file
from tinygpt.training.module import LanguageModel

N_MUTATIONS = 200


def mutations(content: bytes) -> list[bytes]:
    """Flipped bits, changed bytes, blocks that moved, and every kind of cut; more of them near both ends."""
    rng = random.Random(0)
    found = []
    for i in range(N_MUTATIONS):
        place = rng.randrange(len(content))
        if i % 4 == 1:
            place = len(content) - 1 - min(int(rng.expovariate(0.01)), len(content) - 1)
        changed = bytearray(content)
        match i % 5:
            case 0:
                changed = changed[:place]
            case 1:
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place] = (changed[place] + rng.randrange(1, 256)) % 256
            case 3:
                changed[place : place + 32] = bytes(len(changed[place : place + 32]))
            case 4:
                other = rng.randrange(len(content))
                changed[place : place + 16], changed[other : other + 16] = content[other:][:16], content[place:][:16]
        found.append(bytes(changed))
    return found


def unharmed(path: Path, read: Callable[[], object], expected: object, error: str) -> int:
    """How many mutations of a file were read as what was written; all others must be one named error."""
    content = path.read_bytes()
    outcomes = []
    for changed in mutations(content):
        path.write_bytes(changed)
        try:
            outcomes.append(read())
        except UserError as refused:
            outcomes.append(str(refused))
    path.write_bytes(content)
    assert read() == expected
    assert all(outcome == expected or (isinstance(outcome, str) and error in outcome) for outcome in outcomes)
    return outcomes.count(expected)


def test_a_damaged_checkpoint_is_refused(gpt: GPT, tmp_path: Path):
    path = save(tmp_path / "a.ckpt", gpt)

    def read() -> object:
        contents = checkpoint.read(path)
        weights = {name: w.numpy().tobytes() for name, w in contents.model.state_dict().items()}
        return weights, contents.model.config, contents.tokenizer.config

    same = unharmed(path, read, read(), "a.ckpt is not a tinygpt checkpoint, or it is damaged")
    assert same < N_MUTATIONS / 10  # between the entries lies padding, in which nothing is


def test_without_the_checksums_a_damaged_weight_would_be_read(gpt: GPT, tmp_path: Path):
    """What the test above guards against: PyTorch itself reads a file with a flipped bit."""
    path = save(tmp_path / "a.ckpt", gpt)
    with zipfile.ZipFile(path) as archive:
        entry = max(archive.infolist(), key=lambda info: info.file_size)
    content = bytearray(path.read_bytes())
    content[entry.header_offset + 512] ^= 1
    path.write_bytes(bytes(content))
    assert torch.load(path, weights_only=True)["tinygpt"]
    with pytest.raises(UserError, match="damaged"):
        checkpoint.read(path)


def test_a_damaged_token_file_is_made_again(tmp_path: Path):
    documents = Dataset.from_dict({"text": ["a text of many words " * 40, "another"]})

    def read() -> object:
        file = encode(documents, ByteTokenizer(), tmp_path)
        return file.ids.tolist(), file.dtype, file.n_documents, file.n_bytes

    expected = read()
    (path,) = tmp_path.glob("*.tokens")
    assert unharmed(path, read, expected, "none is refused") == N_MUTATIONS


def test_an_unfinished_token_file_that_is_damaged_does_no_harm(tmp_path: Path):
    documents = Dataset.from_dict({"text": ["a text of many words " * 40, "another"]})
    expected = encode(documents, ByteTokenizer(), tmp_path).path.read_bytes()
    (path,) = tmp_path.glob("*.tokens")
    for changed in mutations(expected)[::4]:
        path.with_name(path.name + ".unfinished").write_bytes(changed)
        path.unlink()
        assert encode(documents, ByteTokenizer(), tmp_path).path.read_bytes() == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.json.sha256"])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "tokenizer.json"
    write_file(path, BPETokenizer.train(["to be, or not to be"], vocab_size=270))

    def read() -> object:
        return PretrainedTokenizer.train([], str(path)).config

    same = unharmed(tmp_path / name, read, read(), "tokenizer.json")
    assert same < N_MUTATIONS / 2 if name == "tokenizer.json" else same > 0  # what follows the checksum is not read


def test_a_tokenizer_without_a_checksum_is_read_as_it_is(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    tokenizer: Tokenizer = BPETokenizer.train(["to be, or not to be"], vocab_size=270)
    path.write_text(tokenizer.to_json())
    assert read_file(path) == tokenizer.to_json()
    (tmp_path / "tokenizer.json.sha256").write_text(f"{'0' * 64}  tokenizer.json\n")
    with pytest.raises(UserError, match=r"is damaged, or was changed: .*tokenizer\.json\.sha256 says so; remove that"):
        read_file(path)


class Malicious:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_no_code_of_a_checkpoint_runs_on_going_on_with_it(command):
    """A whole file, checksums and all, whose pickle calls a function."""
    assert command(*TINY)[0] == 0
    path = Path("run/checkpoints/last.ckpt")
    contents = torch.load(path, weights_only=True)
    torch.save(contents | {"callbacks": Malicious()}, path)
    status, _, err = command("resume=run", "trainer.max_steps=9")
    assert (status, err.count("\n")) == (1, 1)
    assert "run/checkpoints/last.ckpt is not a tinygpt checkpoint, or it is damaged" in err
    with pytest.raises(UserError, match="is not a tinygpt checkpoint"):
        checkpoint.read(path)
    assert not Path("ran").exists()
    pickle.loads(pickle.dumps(Malicious()))  # it would have
    assert Path("ran").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB, where that can be had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("only root can mount a disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_the_last_checkpoint_and_the_run_goes_on_when_there_is_room(command, small_disk: Path):
    wide = [*TINY, "optimizer=adamw", "model.n_embd=64", "tokenizer=byte", "eval_every=2"]  # 0.9 MB a checkpoint
    wide += ["model.dropout=0.1"]
    run = small_disk / "run"
    assert command(*wide, "run_dir=whole")[0] == 0
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_200_000))
    status, _, err = command(*wide, f"run_dir={run}")
    assert status == 1
    assert err.endswith(f"train.py: the disk is full, {run}/checkpoints/last.ckpt could not be written; make room\n")
    assert f"the last checkpoint is {run}/checkpoints/last.ckpt, of step 2\n" in err
    assert f"to go on from it: python train.py resume={run}\n" in err
    assert checkpoint.load(run / "checkpoints" / "last.ckpt")["global_step"] == 2
    assert not list(run.rglob("*.unfinished"))

    assert command(f"resume={run}")[0] == 1  # still no room
    ballast.unlink()
    assert command(f"resume={run}")[0] == 0
    assert result(run) == result(Path("whole"))


def test_a_run_that_is_told_to_stop_stops_though_the_disk_is_full(command, small_disk: Path, monkeypatch):
    wide = [*TINY, "optimizer=adamw", "model.n_embd=64", "tokenizer=byte", "eval_every=2"]
    (small_disk / "ballast").write_bytes(bytes(1_700_000))
    original = LanguageModel.training_step

    def signalled(self, batch, batch_idx):
        if batch_idx == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "training_step", signalled)
    with pytest.raises(SystemExit) as stop:
        command(*wide, f"run_dir={small_disk / 'run'}")
    assert stop.value.code == 128 + signal.SIGTERM
    assert checkpoint.load(small_disk / "run" / "checkpoints" / "last.ckpt")["global_step"] == 2


def test_a_disk_that_fills_while_text_is_encoded_is_named(command, small_disk: Path):
    (small_disk / "ballast").write_bytes(bytes(3_100_000))
    Path("book.txt").write_text("To be, or not to be, that is the question.\n" * 3000)
    status, _, err = command(*TINY, "tokenizer=byte", f"data.cache_dir={small_disk}")
    assert (status, err.count("\n")) == (1, 1)
    assert "train.py: the disk is full" in err
