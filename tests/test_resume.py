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
from tinygpt import checkpoint
from tinygpt.training.module import LanguageModel
from tinygpt.training.resume import alone

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
    "early stopping": ["callbacks=early_stopping", "callbacks.early_stopping.min_delta=100", "eval_every=3"],
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


@pytest.mark.parametrize("max_steps", [12, 4])
def test_a_validation_that_was_interrupted_is_made_again(command, monkeypatch, max_steps: int):
    """Also the last one, after which there is no step left."""
    words = [*RUN, f"trainer.max_steps={max_steps}"]
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


def test_a_complete_run_says_how_it_is_extended(command):
    assert command(*RUN)[0] == 0
    before = result(Path("run"))
    status, out, err = command("resume=run")
    assert (status, err) == (0, "")
    assert "no step was left; for more: python train.py resume=run trainer.max_steps=24" in out
    assert result(Path("run")) == before


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


CHANGES = [
    (["trainer.max_steps=24"], "trainer.max_steps was 12 and is 24: the 12 steps so far had another learning rate"),
    (["trainer.max_steps=24", "optimizer.lr=0.01"], "optimizer.lr was 0.003 and is 0.01"),
    (["trainer.max_steps=24", "data.batch_size=2"], "data.batch_size was 4 and is 2"),
    (["trainer.max_steps=24", "model.dropout=0.0"], "model.dropout was 0.1 and is 0.0"),
]


@pytest.mark.parametrize(("words", "message"), CHANGES, ids=[words[-1] for words, _ in CHANGES])
def test_a_change_that_breaks_equality_is_named_and_made(command, words: list[str], message: str):
    assert command(*RUN)[0] == 0
    status, _, err = command("resume=run", *words)
    assert status == 0
    assert f"train.py: not equal to a run that was begun so: {message}\n" in err
    assert err.count("\n") == len(words)
    last = checkpoint.load(Path("run/checkpoints/last.ckpt"))
    assert last["global_step"] == 24
    if "optimizer.lr=0.01" in words:
        assert {group["initial_lr"] for group in last["optimizer_states"][0]["param_groups"]} == {0.01}
    if "data.batch_size=2" in words:
        assert last["TextDataModule"]["rows"] == 12 * 4 + 12 * 2


def test_an_end_between_two_validations_is_named(command):
    words = [*RUN, "schedule.final_fraction=1.0"]
    assert command(*words, "trainer.max_steps=6")[0] == 0
    _, _, err = command("resume=run", "trainer.max_steps=12")
    assert "trainer.max_steps was 6: metrics.csv has a record and a validation at that step" in err


def test_a_new_patience_counts(command):
    words = ["callbacks=early_stopping", "callbacks.early_stopping.min_delta=100", "eval_every=1"]
    assert command(*RUN, *words)[0] == 0
    assert json.loads(Path("run/summary.json").read_text())["step"] == 4
    assert command("resume=run", "callbacks.early_stopping.patience=6")[0] == 0
    assert json.loads(Path("run/summary.json").read_text())["step"] == 7


def test_another_text_is_named_and_read_with_the_tokenizer_of_the_run(command):
    words = [*RUN, "tokenizer=char"]
    assert command(*words, "trainer.max_steps=4")[0] == 0
    before = Path("run/tokenizer.json").read_text()
    Path("book.txt").write_text("to be, or not to be, that is the question.\n" * 101)
    status, _, err = command("resume=run", "trainer.max_steps=8")
    assert status == 0
    assert "the training text is another one" in err
    assert Path("run/tokenizer.json").read_text() == before


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


MISTAKES = [
    (["resume=nowhere"], 2, "resume=nowhere names no run: there is no nowhere/config.yaml"),
    (
        ["resume=run", "model=gpt2"],
        2,
        "model=gpt2 cannot be chosen for a run that has begun; its keys can be set: mod",
    ),
    (["resume=run", "run_dir=x"], 2, "run_dir= does not go with resume=: a run goes on where it was"),
    (["resume=run", "-m", "seed=1,2"], 2, "-m does not go with resume=: one run goes on, under its own configuration"),
    (
        ["resume=run", "model.n_embd=32"],
        2,
        "model.n_embd cannot be changed to 32, the run was begun with 16; start",
    ),
    (["resume=run", "tokenizer._target_=x.y"], 2, "_target_=x.y names nothing that can be imported"),
    (["resume=run", "trainer.max_steps=5"], 2, "trainer.max_steps=5 is below the 6 steps that the run has made"),
    (["resume=run", "model.n_layr=5"], 2, "there is no key model.n_layr; did you mean n_layer?"),
    (["resume=run", "sed=5"], 2, "there is no key sed; did you mean seed?"),
    (["resume=run(1)"], 2, "'resume=run(1)' cannot be read; quote the value twice: 'resume=\"run(1)\"'"),
]


def test_mistakes_in_going_on_are_one_line_and_change_nothing(command):
    assert command(*TINY)[0] == 0
    before = {path: path.read_bytes() for path in sorted(Path("run").rglob("*")) if path.is_file()}
    for words, status, message in MISTAKES:
        got, out, err = command(*words)
        assert message in err, words
        assert (got, out, err.count("\n")) == (status, "", 1), words
    assert {path: path.read_bytes() for path in sorted(Path("run").rglob("*")) if path.is_file()} == before


def test_two_processes_do_not_train_in_one_directory(command):
    assert command(*TINY)[0] == 0
    with alone(Path("run")):
        said = "train.py: another process trains in run; wait for it, or stop it\n"
        assert command("resume=run") == (2, "", said)
    assert command("resume=run")[0] == 0


def test_a_damaged_last_checkpoint_is_named(command):
    assert command(*TINY)[0] == 0
    path = Path("run/checkpoints/last.ckpt")
    path.write_bytes(path.read_bytes()[:-100])
    status, out, err = command("resume=run")
    assert (status, out) == (1, "")
    assert err == "train.py: run/checkpoints/last.ckpt is not a tinygpt checkpoint, or it is damaged\n"
