"""Runs that ask for more memory than there is: what would fit is said, or chosen."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import TINY, small
from tinygpt.data.module import TextDataModule
from tinygpt.data.text_files import TextFiles
from tinygpt.training.estimate import NOTHING_FITS, PROBE, Memory, Probe
from tinygpt.training.module import LanguageModel

ROOT = Path(__file__).parents[1]


# Trains where the process may have 1.5 GB more than what it has after its imports.
SHORT_OF_MEMORY = """
import os, resource, sys
from pathlib import Path
import train
from tinygpt.training import run
from tinygpt.training.module import LanguageModel

taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (taken + 1500 * 2**20,) * 2)
sys.exit(train.main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the memory of a process so")
def test_a_run_short_of_memory_names_settings_that_fit(book: Path):
    book.write_text(book.read_text() * 20)
    words = ["data=text_files", "data.files=book.txt", "tokenizer=byte", "trainer.max_steps=2", "model.block_size=64"]

    def train_short_of_memory(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", SHORT_OF_MEMORY, *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HYDRA_FULL_ERROR": "0"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)

    refused = train_short_of_memory(*words, "data.batch_size=512", "run_dir=a")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr
    line = refused.stderr
    assert line.startswith("train.py: out of memory: data.batch_size=512 rows of model.block_size=64 want about ")
    fitting = re.search(r"; (data.batch_size=\d+) (trainer.accumulate_grad_batches=\d+) would fit", line)
    assert fitting
    assert train_short_of_memory(*words, *fitting.groups(), "run_dir=b").returncode == 0


@pytest.mark.parametrize(("batch_size", "rows"), [(100, 100), (4000, PROBE // 4)])
def test_of_short_documents_as_many_rows_are_tried_as_of_others_tokens(token_file, batch_size: int, rows: int):
    text = token_file(*["abc"] * 5000)  # and the end of each
    corpus = TextFiles(files="unused", layout="padded", batch_size=batch_size)
    data = TextDataModule(text, text, corpus=corpus, block_size=1024, seed=0)
    probe = Probe(small("gpt2", block_size=1024), data, "cpu", "32-true")
    assert probe.batch.ids.shape[0] == rows


def test_out_of_memory_is_one_line_also_where_nothing_more_is_known(command, monkeypatch):
    def fail(*_args, **_keywords):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "training_step", fail)
        status, _, err = command(*TINY, "trainer.accumulate_grad_batches=3")
    assert (status, err.count("\n")) == (1, 1)
    assert "data.batch_size=4 rows of model.block_size=16 want about " in err
    assert "; try data.batch_size=2 trainer.accumulate_grad_batches=6" in err
    with monkeypatch.context() as patch:
        patch.setattr("tinygpt.model.gpt.GPT.forward", fail)
        _, _, err = command(*TINY, "run_dir=other")
    assert "not even a few rows fit: take a smaller block_size or a smaller model" in err


def test_a_dry_run_says_what_would_be_too_much(command, monkeypatch):
    monkeypatch.setattr("tinygpt.hardware.memory", lambda device: 2**20)
    status, out, _ = command(*TINY, "data.batch_size=64", "dry_run=true", "tokenizer=byte")
    assert status == 0
    assert re.search(r"too much: data.batch_size=\d+ trainer.accumulate_grad_batches=\d+ would fit", out)
    monkeypatch.setattr("tinygpt.hardware.memory", lambda device: 1000)
    assert "too much: not even one row fits" in command(*TINY, "dry_run=true")[1]


def test_a_batch_of_auto_is_what_fits_and_a_step_keeps_its_rows(command, monkeypatch):
    words = [*TINY, "model.dropout=0.1", "tokenizer=byte"]
    given = [*words, "data.batch_size=4", "trainer.accumulate_grad_batches=12", "run_dir=given"]
    assert command(*given)[0] == 0
    memory = Memory(fixed=1000, row=100)
    monkeypatch.setattr("tinygpt.training.estimate.Probe.memory", lambda self: (torch.rand(3), memory)[1])
    monkeypatch.setattr("tinygpt.hardware.memory", lambda device: 1000 + 2 * 100 * 5)  # five rows; four divide 48
    status, _, err = command(*words, "data.batch_size=auto", "trainer.accumulate_grad_batches=3", "run_dir=auto")
    assert status == 0, err
    config = yaml.safe_load(Path("auto/config.yaml").read_text())
    assert (config["data"]["batch_size"], config["trainer"]["accumulate_grad_batches"]) == (4, 12)
    losses = [json.loads(Path(name, "summary.json").read_text())["val_loss"] for name in ("given", "auto")]
    assert losses[0] == losses[1]

    monkeypatch.setattr("tinygpt.hardware.memory", lambda device: 1000 + 2 * 100 * 2)
    assert command("resume=auto", "data.batch_size=auto", "trainer.max_steps=8")[0] == 0
    config = yaml.safe_load(Path("auto/config.yaml").read_text())
    assert (config["data"]["batch_size"], config["trainer"]["accumulate_grad_batches"]) == (2, 24)

    monkeypatch.setattr("tinygpt.hardware.memory", lambda device: 1000)
    status, _, err = command(*words, "data.batch_size=auto", "run_dir=none")
    assert (status, err) == (1, f"train.py: out of memory: {NOTHING_FITS}\n")


def test_a_dry_run_of_an_enormous_batch_takes_a_few_rows(command):
    status, out, _ = command(*TINY, "data.batch_size=100000000", "dry_run=true", "tokenizer=byte")
    assert status == 0
    assert "9,597,520,662 tokens" in out
