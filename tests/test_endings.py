"""How runs and sweeps end: refused, diverged, stopped, early, with a trial that failed; and what they return."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import pytest
import torch

import train
from tests.conftest import TINY
from tinygpt.sweep.study import load
from tinygpt.training import run

ROOT = Path(__file__).parents[1]
TAKEN = "train.py: run_dir=run holds a run already; go on with it by resume=run, or name another directory\n"


def test_of_two_runs_at_once_one_gets_the_directory(command, monkeypatch):
    """The other one takes the directory while this one still reads its corpus."""
    from tinygpt.data.text_files import TextFiles

    original = TextFiles.splits

    def slow(self):
        Path("run").mkdir(exist_ok=True)
        Path("run/config.yaml").write_text("the other's")
        return original(self)

    monkeypatch.setattr(TextFiles, "splits", slow)
    status, _, err = command(*TINY)
    assert (status, err) == (2, TAKEN)
    assert Path("run/config.yaml").read_text() == "the other's"
    assert len(list(Path("run").iterdir())) == 1


def test_a_run_is_never_overwritten(command):
    assert command(*TINY)[0] == 0
    before = Path("run/config.yaml").read_text()
    status, _, err = command(*TINY, "seed=2")
    assert status == 2
    assert err == TAKEN
    assert Path("run/config.yaml").read_text() == before


def test_a_sweep_trains_each_trial_and_goes_on_after_one_that_fails(command):
    assert command(*TINY, "-m", "model.n_head=2,5,4", "run_dir=sweep")[0] == 2
    assert sorted(path.name for path in Path("sweep").iterdir() if path.is_dir()) == ["0", "1", "2"]
    assert not [*Path("sweep/1").iterdir()]  # by which its report knows of it
    for trial in ("0", "2"):
        assert json.loads(Path(f"sweep/{trial}/summary.json").read_text())["status"] == "completed"


def test_a_sweep_over_choices_names_the_keys_that_there_are(command):
    status, _, err = command(*TINY, "-m", "tokenizer=char,byte", "model.n_layr=3")
    assert (status, err.count("\n")) == (2, 1)
    assert "there is no key model.n_layr; did you mean n_layer?" in err


def test_a_run_returns_its_best_bits_per_byte(command, monkeypatch):
    returned = []
    original = run.run
    monkeypatch.setattr(run, "run", lambda *given, **named: returned.append(original(*given, **named)) or returned[-1])
    assert command(*TINY)[0] == 0
    assert returned == [json.loads(Path("run/summary.json").read_text())["best_val_bits_per_byte"]]


def test_a_run_none_of_whose_validations_was_a_number_has_failed(command):
    words = ["model=gpt2", "optimizer.lr=1e30", "trainer.gradient_clip_val=0.0", "on_bad_loss=skip"]
    status, _, err = command(*TINY, *words)
    assert (status, err.splitlines()[-1]) == (1, "train.py: no validation loss was a number; try a lower optimizer.lr")
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


def test_a_full_disk_ends_a_sweep_and_is_not_its_trials_fault(
    command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def full(*_: object, **__: object) -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "run", full)
    with hydra.initialize_config_dir(str(train.CONF), version_base=None):
        cfg = hydra.compose("train", TINY)
    assert train.attempt(cfg, TINY, is_trial=True)[1] == train.NO_ROOM
    assert capsys.readouterr().err == "train.py: the disk is full; make room\n"
    monkeypatch.setattr(train, "isolated", lambda *_: train.NO_ROOM)
    for words in (["sweep=optuna", "sweep.n_trials=2"], ["seed=1,2", "run_dir=grid"]):
        with pytest.raises(SystemExit) as end:
            command(*TINY, "-m", "run_dir=sweep", *words)
        out, err = capsys.readouterr()
        assert end.value.code == 1
        assert err == "train.py: the sweep ends, for the disk is full; make room, and the same command goes on\n"
        assert out.count(": data=text_files") == 1  # no other trial was begun
    assert [trial.state.is_finished() for trial in load(Path("sweep")).trials] == [False]


def test_a_run_that_diverges_returns_a_finite_number(command, monkeypatch):
    returned = []
    original = train.attempt
    monkeypatch.setattr(
        train, "attempt", lambda *given, **named: returned.append(original(*given, **named)) or returned[-1]
    )
    status, _, err = command(*TINY, "model=gpt2", "optimizer.lr=1e30", "trainer.gradient_clip_val=0.0", "eval_every=1")
    assert (status, returned) == (1, [(train.DIVERGED, 1)])
    assert "the last checkpoint is run/checkpoints/last.ckpt, of step 1" in err
    assert "train.py: the loss is nan at step 2, whose windows begin at the training tokens " in err
    assert err.endswith("; its update was not made. Try a lower optimizer.lr, or on_bad_loss=skip\n")
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 0), (signal.SIGUSR1, 1)])
def test_a_stopped_run_keeps_its_last_step_and_says_where(book: Path, number: signal.Signals, workers: int):
    words = [*TINY, "trainer.max_steps=1000000", "eval_every=1000000", f"data.num_workers={workers}"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = Path("run/metrics.csv")
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 20):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, number)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["global_step"] == summary["step"]
    assert f"the last checkpoint is run/checkpoints/last.ckpt, of step {summary['step']}" in err
    assert "to go on from it: python train.py resume=run\n" in err
    assert f"stopped by {number.name} after step {summary['step']}" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(book: Path):
    words = [*TINY, "trainer.max_steps=1000000", "eval_every=20", "trainer.accumulate_grad_batches=100000"]
    process = subprocess.Popen([sys.executable, str(ROOT / "train.py"), *words], stderr=subprocess.PIPE, text=True)
    summary = Path("run/summary.json")
    deadline = time.monotonic() + 120
    while not summary.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert process.poll() is None  # the step at hand takes minutes
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert err.endswith("train.py: stopped at once; what came after the last checkpoint is lost\n")
    assert json.loads(summary.read_text())["status"] == "interrupted"


def test_early_stopping_ends_a_run_that_no_longer_learns(command):
    status, out, _ = command(
        *TINY, "callbacks=early_stopping", "callbacks.early_stopping.min_delta=100", "trainer.max_steps=99"
    )
    assert status == 0
    assert "stopped early, after step 16/99: the validation loss no longer falls" in out
    assert json.loads(Path("run/summary.json").read_text())["step"] == 16  # 4, and three validations more


CORPORA = [
    (b"", "windows", "there is no text in corpus.txt"),
    (b"a", "windows", "the training split has 2 tokens, fewer than model.block_size=16"),
    (b"a", "padded", "the validation split holds no text: give more documents, or a larger data.val_fraction"),
    (b"a" * 500, "windows", None),
    (b"a" * 500, "padded", None),
]


@pytest.mark.parametrize(("text", "layout", "message"), CORPORA)
def test_a_corpus_of_next_to_nothing_trains_or_says_what_is_missing(command, text, layout: str, message: str | None):
    Path("corpus.txt").write_bytes(text)
    words = ["data.files=corpus.txt", f"data.layout={layout}", "tokenizer=char"]
    status, _, err = command(*TINY, *words)
    if message is None:
        assert (status, err) == (0, "")
        assert json.loads(Path("run/summary.json").read_text())["status"] == "completed"
    else:
        assert (status, err.count("\n")) == (1, 1)
        assert message in err
        assert not Path("run").exists()


def test_a_file_that_changed_between_two_runs_is_read_anew(command):
    _, out, _ = command(*TINY, "tokenizer=byte")
    assert "3,871 tokens to train on" in out
    Path("book.txt").write_text("Not to be.\n" * 100)
    _, out, _ = command(*TINY, "tokenizer=byte", "run_dir=again")
    assert "991 tokens to train on" in out
