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
from tinygpt.tokenizers import BPETokenizer
from tinygpt.training.checkpointing import Checkpoint
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
    "early stopping": [
        "callbacks=early_stopping",
        "callbacks.early_stopping.min_delta=100",
        "eval_every=3",
        "trainer.max_steps=20",
    ],
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


def test_a_signal_while_the_last_checkpoint_is_written_stops_what_comes_after(command, monkeypatch):
    """A sweep, for one."""
    original = Checkpoint._save_last
    monkeypatch.setattr(
        Checkpoint,
        "_save_last",
        lambda self, trainer: terminate() if trainer.global_step == 6 else None or original(self, trainer),
    )
    with pytest.raises(SystemExit) as stop:
        command(*TINY, "-m", "seed=1,2")
    assert stop.value.code == 128 + signal.SIGTERM
    assert [path.name for path in Path("run").iterdir() if path.is_dir()] == ["0"]


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
    assert "the text is another one" in err
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
    (["resume=nowhere"], 2, "resume=nowhere names no run's directory: there is no nowhere/config.yaml"),
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


@pytest.mark.parametrize("damaged", [True, False])
def test_a_last_checkpoint_that_is_damaged_or_gone_is_named_and_the_best_is_a_way_out(command, damaged: bool):
    assert command(*TINY)[0] == 0
    last, best = (Path(f"run/checkpoints/{name}.ckpt") for name in ("last", "best"))
    content = last.read_bytes()
    last.unlink()
    if damaged:
        last.write_bytes(content[:-100])
    status, out, err = command("resume=run")
    assert (status, out) == (1, "")
    what = f"{last} is not a tinygpt checkpoint, or it is damaged" if damaged else f"there is no checkpoint {last}"
    assert err == f"train.py: {what}; to go on from the best one, copy {best} to it\n"
    shutil.copyfile(best, last)
    assert command("resume=run", "trainer.max_steps=9")[0] == 0
    last.unlink()
    best.unlink()
    assert command("resume=run")[0] == 0  # from its beginning: there is nothing to lose


def test_nothing_that_a_configuration_names_beside_tinygpt_is_run(command):
    assert command(*TINY)[0] == 0
    for name in ("os.system", "tinygpt.files.os.system", "subprocess.run", "lightning.pytorch.loggers.CSVLogger"):
        cfg = yaml.safe_load(Path("run/config.yaml").read_text())
        cfg["data"] = {"_target_": name, "command": "touch ran"}
        Path("run/config.yaml").write_text(yaml.safe_dump(cfg))
        status, out, err = command("resume=run")
        assert (status, out) == (2, "")
        assert err == f"train.py: run/config.yaml: data names {name}, which is not tinygpt's; it is not run\n"
    assert not Path("ran").exists()


def test_a_tokenizer_whose_file_is_gone_is_in_the_checkpoint(command):
    Path("tokenizer.json").write_text(BPETokenizer.train(["to be"], vocab_size=280).to_json())
    assert command(*TINY, "tokenizer=pretrained", "tokenizer.path=tokenizer.json")[0] == 0
    Path("tokenizer.json").unlink()
    assert command("resume=run", "trainer.max_steps=9")[0] == 0
