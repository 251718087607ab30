"""`python train.py` as a user types it, in one process."""

import json
import os
import re
import subprocess
import sys
from math import log
from pathlib import Path

import pytest
import torch
import yaml

import tinygpt
from tests.conftest import TINY
from tinygpt.checkpoint import read
from tinygpt.tokenizers import BPETokenizer
from tinygpt.training.module import LanguageModel

ROOT = Path(__file__).parents[1]


def test_a_run_trains_reports_and_leaves_all_that_is_needed(command):
    status, out, err = command(*TINY)
    assert (status, err) == (0, "")
    files = {path.relative_to("run").as_posix() for path in Path("run").rglob("*") if path.is_file()}
    assert files == {
        "config.yaml",
        "tokenizer.json",
        "tokenizer.json.sha256",
        ".lock",
        "metrics.csv",
        "samples.jsonl",
        "facts.json",
        "report.html",
        "summary.json",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
    }
    summary = json.loads(Path("run/summary.json").read_text())
    assert list(summary) == [
        "status",
        "reason",
        "step",
        "skipped_steps",
        "epoch",
        "tokens_seen",
        "train_seconds",
        "seconds_left",
        "tokens_per_second",
        "flops",
        "utilisation",
        "train_loss",
        "val_loss",
        "val_bits_per_byte",
        "best_val_loss",
        "best_val_bits_per_byte",
        "n_parameters",
        "device",
        "precision",
        "checkpoint",
    ]
    assert (summary["status"], summary["step"]) == ("completed", 6)
    assert f"best validation loss {summary['best_val_loss']:.4f}" in out
    assert "python generate.py --checkpoint run" in out
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["trainer"]["precision"] == summary["precision"] != "auto"
    assert config["run_dir"] == "run"
    assert config["trainer"]["accelerator"] == summary["device"]
    assert config["model"]["vocab_size"] == read(Path("run/checkpoints/last.ckpt")).tokenizer.vocab_size
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6


def test_the_same_seed_trains_the_same_weights_and_another_does_not(command):
    weights = []
    for i, seed in enumerate((5, 5, 6)):
        assert command(*TINY, f"seed={seed}", f"run_dir=r{i}", "model.dropout=0.2")[0] == 0
        weights.append(read(Path(f"r{i}/checkpoints/last.ckpt")).model.head.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_deterministic_allows_no_other_algorithms_in_its_run_alone(command, monkeypatch):
    seen = []
    original = LanguageModel.training_step
    monkeypatch.setattr(
        LanguageModel,
        "training_step",
        lambda self, *batch: seen.append(torch.are_deterministic_algorithms_enabled()) or original(self, *batch),
    )
    assert command(*TINY, "deterministic=true", "trainer.max_steps=1")[0] == 0
    assert command(*TINY, "run_dir=other", "trainer.max_steps=1")[0] == 0
    assert seen == [True, False]


@pytest.mark.gpu
def test_a_deterministic_run_on_a_gpu_is_the_same_each_time(command):
    weights = []
    for name in ("a", "b"):
        words = ["deterministic=true", "trainer.accelerator=cuda", "model.dropout=0.1", f"run_dir={name}"]
        assert command(*TINY, *words)[0] == 0
        weights.append(read(Path(f"{name}/checkpoints/last.ckpt")).model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_dry_run_tells_costs_and_windows_and_trains_nothing(command):
    status, out, err = command(*TINY, "dry_run=true", "trainer.accumulate_grad_batches=2")
    assert (status, err) == (0, "")
    for word in ("parameters", "training", "validation", "FLOPs", "memory", "disk", "time", "to see"):
        assert word in out
    assert "768 tokens" in out  # 6 steps of 2 batches of 4 windows of 16
    assert "predicts" in out
    assert not Path("run").exists()


def test_overfitting_tells_the_bits_per_byte_of_the_batch(command):
    assert command(*TINY, "data.overfit=true", "tokenizer=byte")[0] == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["val_bits_per_byte"] == pytest.approx(summary["val_loss"] / log(2), rel=1e-5)  # a byte a token


def test_wandb_goes_offline_by_itself_beside_metrics_csv(command, monkeypatch: pytest.MonkeyPatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(Path.cwd()))  # where no key is kept
    monkeypatch.setenv("NETRC", str(Path.cwd() / "netrc"))
    assert command(*TINY, "logger=wandb", "-m", "seed=1,2")[0] == 0
    for trial in ("0", "1"):  # each trial is a run of its own
        assert len(list(Path(f"run/{trial}/wandb").glob("offline-run-*/*.wandb"))) == 1
        assert Path(f"run/{trial}/metrics.csv").exists()
    assert command("resume=run/0", "trainer.max_steps=9")[0] == 0
    (kept,) = {path.name.rpartition("-")[2] for path in Path("run/0/wandb").glob("offline-run-*")}
    assert kept == Path("run/0/wandb/run_id").read_text()
    assert len(list(Path("run/0/wandb").glob("offline-run-*"))) == 2  # one run, in two parts
    alone = [sys.executable, str(ROOT / "train.py"), *TINY, "logger=wandb", "run_dir=alone"]
    result = subprocess.run(alone, capture_output=True, text=True, check=True)
    assert (result.stderr, result.stdout.count("wandb:")) == ("", 1)  # W&B itself says nothing
    assert "wandb: the run is kept offline; to send it later: wandb sync alone/wandb/offline-run-*\n" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["data=lines", "data.files=book.txt", "data.batch_size=4"],
        ["data=lines", "data.files=book.txt", "data.layout=packed", "data.long_documents=truncate"],
        ["data=lines", "data.files=book.txt", "data.layout=windows"],
        ["data.files=rows.jsonl", "data.text_column=content", "tokenizer=byte"],
        ["tokenizer=bpe", "tokenizer.vocab_size=300", "data.num_proc=2"],
        ["tokenizer=pretrained", "tokenizer.path=tokenizer.json"],
        ["model=modern", "model.n_kv_head=1", "data.layout=padded"],
        ["attention=manual", "model.n_layer=2", "model.window=[4,null]", "model.n_random=1", "model.random_block=4"],
        ["attention=chunked", "attention.strip=4", "model.dropout=0.1", "model.gradient_checkpointing=true"],
        ["attention=sliding_window", "model.window=4", "model.n_global=2", "data.layout=packed"],
        ["attention=sliding_window", "data.layout=padded"],
    ],
    ids=" ".join,
)
def test_every_corpus_layout_tokenizer_family_and_attention_trains_and_samples(command, words: list[str]):
    lines = Path("book.txt").read_text().splitlines()
    Path("rows.jsonl").write_text("\n".join(json.dumps({"content": line}) for line in lines))
    Path("tokenizer.json").write_text(BPETokenizer.train(lines, vocab_size=280).to_json())
    status, out, err = command(*TINY, *words)
    assert (status, err) == (0, "")
    contents = read(Path("run/checkpoints/last.ckpt"))
    assert contents.model.config["vocab_size"] == contents.tokenizer.vocab_size
    assert f"{contents.tokenizer.vocab_size:,} tokens in the vocabulary" in out
    assert len(tinygpt.load("run").generate("To be", max_new_tokens=5, temperature=0)) > 0


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_the_tokenizer_of_a_run_is_saved_for_the_tokenizers_library(command, tokenizer: str):
    from tokenizers import Tokenizer

    assert command(*TINY, f"tokenizer={tokenizer}")[0] == 0
    library = Tokenizer.from_file("run/tokenizer.json")
    ours = read(Path("run/checkpoints/last.ckpt")).tokenizer
    assert library.encode("to be").ids == ours.encode("to be").tolist()


def test_help_names_groups_choices_and_examples_quickly(tmp_path: Path):
    code = "import sys; sys.argv = ['train.py', '--help']; import train, atexit\n"
    code += (
        "atexit.register(lambda: print('SLOW' if 'torch' in sys.modules or 'lightning' in sys.modules else 'QUICK'))\n"
    )
    code += "train.main()"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "python train.py data=text_files data.files=book.txt" in result.stdout
    assert "model: gpt2" in result.stdout
    assert result.stdout.endswith("QUICK\n")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("model=", ["model=gpt2", "model=modern"]),
        ("sweep=o", ["sweep=optuna"]),
        ("optimizer.lr", ["optimizer.lr="]),
        ("trainer.max_", ["trainer.max_steps=", "trainer.max_time="]),
    ],
)
def test_the_shell_completes_groups_choices_and_keys(typed: str, completed: list[str]):
    line = f"python train.py {typed}"
    environment = os.environ | {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_CWORD": "2"}
    command = [sys.executable, ROOT / "train.py", "-sc", "query=bash"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == completed


def test_what_goes_to_a_file_is_plain_lines_each_said_once(command):
    _, out, err = command(*TINY)
    assert err == ""
    assert all(c.isprintable() or c in "\n" for c in out[: out.index("best validation")])
    lines = [line for line in out.splitlines() if line.startswith("step")]
    assert len(lines) == len(set(lines)) == 2


def test_nothing_of_hydra_is_in_the_package():
    for path in (ROOT / "tinygpt").rglob("*.py"):
        text = path.read_text()
        imported = set(re.findall(r"^\s*(?:import|from) (hydra|omegaconf|lightning)\b", text, re.MULTILINE))
        of_training = "training" in path.parts or path == ROOT / "tinygpt/data/module.py"
        assert imported <= ({"lightning"} if of_training else set()), path


@pytest.mark.slow
def test_debug_overfit_drives_one_batch_to_near_zero_loss(command):
    size = ["model.block_size=32", "model.n_layer=2", "model.n_embd=64"]
    status, *_ = command("debug=overfit", *TINY[:2], "run_dir=run", *size)
    assert status == 0
    assert json.loads(Path("run/summary.json").read_text())["val_loss"] < 0.05


TWINS = {
    "shakespeare_reference": ["trainer.max_steps=100"],
    "shakespeare_cpu": ["trainer.max_time=null", "trainer.max_steps=30", "model.block_size=256"],
    "shakespeare_cpu_best": ["trainer.max_time=null", "trainer.max_steps=30", "model.block_size=256"],
    "shakespeare_cpu_exportable": ["trainer.max_time=null", "trainer.max_steps=40"],
}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", TWINS)
def test_an_experiment_learns_shakespeare_like_text(command, experiment: str):
    """Scaled twins of the recipes, on a local folder in the Hub's layout."""
    from datasets import Dataset

    Path("folder").mkdir()
    text = Path("book.txt").read_text()
    for split, share in (("train", text), ("validation", text[:500]), ("test", text[500:900])):
        Dataset.from_dict({"text": [share]}).to_parquet(f"folder/{split}-00000-of-00001.parquet")
    status, _, err = command(f"experiment={experiment}", "data.path=folder", "run_dir=run", *TWINS[experiment])
    assert status == 0, err
    assert json.loads(Path("run/summary.json").read_text())["val_loss"] < 1.0
