"""`python train.py resume=RUN_DIR` with something changed: obeyed and named, or refused in one line."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from benchmarks.survival import result
from tests.conftest import TINY
from tests.test_resume import RUN
from tinygpt import checkpoint
from tinygpt.files import alone
from tinygpt.tokenizers import BPETokenizer


def test_a_complete_run_says_how_it_is_extended(command):
    assert command(*RUN)[0] == 0
    before = result(Path("run"))
    status, out, err = command("resume=run")
    assert (status, err) == (0, "")
    assert "no step was left; for more: python train.py resume=run trainer.max_steps=24" in out
    assert result(Path("run")) == before


CHANGES = [
    (["trainer.max_steps=24"], "trainer.max_steps was 12 and is 24: the 12 steps so far had another learning rate"),
    (["trainer.max_steps=24", "optimizer.lr=0.03"], "optimizer.lr was 0.02 and is 0.03"),
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
    if "optimizer.lr=0.03" in words:
        rates = {group["initial_lr"] for group in last["optimizer_states"][0]["param_groups"]}
        assert rates == {0.03, 0.01, 0.05}  # of the matrices, of what AdamW moves, of tables
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
