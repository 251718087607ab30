"""`python train.py resume=RUN_DIR`: what goes on is, to the last bit, what never stopped."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks.survival import result
from tests.conftest import TINY
from tinygpt.training.checkpointing import Checkpoint
from tinygpt.training.module import LanguageModel

RUN = [*TINY, "trainer.max_steps=12", "log_every=3", "tokenizer=byte", "model.dropout=0.1", "schedule.warmup_steps=2"]

VARIANTS = {
    "windows": [],
    "gpt2": ["model=gpt2", "model.gradient_checkpointing=true"],
    "padded": ["data=lines", "data.files=book.txt", "data.batch_size=4"],
    "packed": ["data=lines", "data.files=book.txt", "data.batch_size=4", "data.layout=packed"],
    "accumulation": ["trainer.accumulate_grad_batches=3"],
    "workers": ["data.num_workers=2", "trainer.accumulate_grad_batches=2"],
    "weight averaging": ["callbacks=weight_averaging", "callbacks.weight_averaging.decay=0.7"],
    "the best two": ["callbacks.checkpoint.keep=2", "eval_every=2", "optimizer.lr=0.1"],
    "early stopping": [
        "callbacks=early_stopping",
        "callbacks.early_stopping.min_delta=100",
        "eval_every=3",
        "trainer.max_steps=20",
    ],
    "adamw": ["optimizer=adamw", "schedule=cosine"],
    "lookups": ["model.ngram_rows=[64,256]", "model.ngram_dropout=0.2", "model.match=3"],
    "random blocks": ["model.window=4", "model.n_random=1", "model.random_block=4"],
}


class KilledError(Exception):
    """In place of SIGKILL: nothing is saved any more."""


def at_batch(monkeypatch: pytest.MonkeyPatch, number: int, act) -> None:
    """Do something in a process's training batch `number`, from 1."""
    original, seen = LanguageModel.training_step, []

    def step(self, batch, batch_idx):
        seen.append(batch)
        if len(seen) == number:
            act()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "training_step", step)


def kill() -> None:
    raise KilledError


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stopped(command, monkeypatch: pytest.MonkeyPatch, batch: int, act, *words: str) -> None:
    """Run a command and stop it in a training batch."""
    with monkeypatch.context() as patch:
        at_batch(patch, batch, act)
        if act is terminate:
            with pytest.raises(SystemExit):
                command(*words)
        else:
            assert command(*words)[0] == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_was_stopped_twice_equals_one_that_never_was(command, monkeypatch, variant: str):
    words = [*RUN, *VARIANTS[variant]]
    accumulate = next((int(w[-1]) for w in words if w.startswith("trainer.accumulate")), 1)
    assert command(*words, "run_dir=whole")[0] == 0
    stopped(command, monkeypatch, 5 * accumulate, terminate, *words)  # between two checkpoints and two records
    stopped(command, monkeypatch, 6 * accumulate, kill, "resume=run")
    status, out, err = command("resume=run")
    assert (status, err) == (0, "")
    assert "going on after step" in out
    assert result(Path("run")) == result(Path("whole"))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(command, monkeypatch):
    assert command(*RUN, "run_dir=whole")[0] == 0
    stopped(command, monkeypatch, 3, kill, *RUN)
    assert not Path("run/checkpoints").exists()
    assert command("resume=run")[0] == 0
    assert result(Path("run")) == result(Path("whole"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_a_run_on_a_gpu_goes_on_as_well(command, monkeypatch, precision: str):
    words = [*RUN, "trainer.accelerator=cuda", f"trainer.precision={precision}", "deterministic=true"]
    assert command(*words, "run_dir=whole")[0] == 0
    stopped(command, monkeypatch, 5, terminate, *words)
    stopped(command, monkeypatch, 6, kill, "resume=run")
    assert command("resume=run")[0] == 0
    assert result(Path("run")) == result(Path("whole"))


@pytest.mark.parametrize(("max_steps", "callbacks"), [(12, "default"), (4, "default"), (12, "weight_averaging")])
def test_a_validation_that_was_interrupted_is_made_again(command, monkeypatch, max_steps: int, callbacks: str):
    """Also the last one, after which there is no step left; and where the weights were exchanged for their average."""
    words = [*RUN, f"trainer.max_steps={max_steps}", f"callbacks={callbacks}"]
    assert command(*words, "run_dir=whole")[0] == 0
    original = LanguageModel.validation_step

    def signalled(self, batch, batch_idx):
        if batch_idx == 1:
            terminate()
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "validation_step", signalled)
        with pytest.raises(SystemExit):
            command(*words)
    assert json.loads(Path("run/summary.json").read_text())["step"] == 4
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["resume"]["validated_step"] == 0
    assert command("resume=run")[0] == 0
    assert result(Path("run")) == result(Path("whole"))


def test_a_signal_in_the_step_before_a_validation_leaves_it_to_the_next_process(command, monkeypatch):
    assert command(*RUN, "run_dir=whole")[0] == 0
    stopped(command, monkeypatch, 4, terminate, *RUN)
    assert command("resume=run")[0] == 0
    assert result(Path("run")) == result(Path("whole"))


@pytest.mark.parametrize("hook", ["configure_optimizers", "on_fit_start"])
def test_a_signal_before_the_first_step_ends_the_run_too(command, monkeypatch, hook: str):
    """Lightning's own handler would let it end with status 0."""
    assert command(*RUN, "run_dir=whole")[0] == 0
    original = getattr(LanguageModel, hook)

    def signalled(self):
        terminate()
        return original(self)

    for words in (RUN, ["resume=run"]):
        with monkeypatch.context() as patch:
            patch.setattr(LanguageModel, hook, signalled)
            with pytest.raises(SystemExit) as stop:
                command(*words)
        assert stop.value.code == 128 + signal.SIGTERM
    stopped(command, monkeypatch, 6, terminate, "resume=run")
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, hook, signalled)
        with pytest.raises(SystemExit):
            command("resume=run")
    assert command("resume=run")[0] == 0
    assert result(Path("run")) == result(Path("whole"))


def test_a_signal_while_the_last_checkpoint_is_written_is_obeyed(command, monkeypatch):
    original = Checkpoint._save_last
    monkeypatch.setattr(
        Checkpoint,
        "_save_last",
        lambda self, trainer: terminate() if trainer.global_step == 6 else None or original(self, trainer),
    )
    with pytest.raises(SystemExit) as stop:
        command(*TINY)
    assert stop.value.code == 128 + signal.SIGTERM


def test_an_extended_run_equals_one_planned_that_long_where_the_schedule_allows_it(command):
    words = [*RUN, "schedule.final_fraction=1.0"]
    assert command(*words, "run_dir=whole")[0] == 0
    assert command(*words, "trainer.max_steps=4", "log_every=2")[0] == 0
    assert command(*words, "run_dir=short", "trainer.max_steps=8", "log_every=2")[0] == 0
    status, _, err = command("resume=short", "trainer.max_steps=12")
    assert (status, err) == (0, "")
    assert command(*words, "run_dir=long", "log_every=2")[0] == 0
    assert result(Path("short")) == result(Path("long"))
    assert yaml.safe_load(Path("short/config.yaml").read_text())["trainer"]["max_steps"] == 12


def test_a_run_that_was_moved_goes_on_where_it_is(command, monkeypatch):
    assert command(*RUN, "run_dir=whole")[0] == 0
    stopped(command, monkeypatch, 6, terminate, *RUN)
    shutil.move("run", "elsewhere (1), it's")
    assert command('resume="elsewhere (1), it\'s"')[0] == 0
    assert result(Path("elsewhere (1), it's")) == result(Path("whole"))
    assert not Path("run").exists()


def test_the_command_that_is_printed_goes_on(command, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        at_batch(patch, 6, terminate)
        with pytest.raises(SystemExit) as stop:
            command(*RUN, 'run_dir="a (1)"')
    assert stop.value.code == 128 + signal.SIGTERM
    err = capsys.readouterr().err
    assert "to go on from it: python train.py 'resume=\"a (1)\"'\n" in err
    assert command('resume="a (1)"')[0] == 0
