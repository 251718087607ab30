"""What a run records besides its checkpoints: metrics.csv, samples, loggers."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
import wandb
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

import tinygpt
from tests.conftest import TINY
from tinygpt import checkpoint

RUN = [*TINY, "model.dropout=0.2", "tokenizer=byte"]


def records(run: str = "run") -> list[dict[str, float]]:
    with (Path(run) / "metrics.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def samples(run: str = "run") -> list[dict]:
    return [json.loads(line) for line in (Path(run) / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def wandb_records(directory: Path) -> list[Record]:
    """All that an offline run keeps: frames of (checksum, length, kind) in blocks of 32 KiB, as LevelDB's log has."""
    (path,) = directory.glob("offline-run-*/*.wandb")
    data, place, found, parts = path.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ([], ["lr", "lr_adamw"]),
        (["optimizer=adamw"], ["lr"]),
        (["model.ngram_rows=[64]"], ["lr", "lr_adamw", "lr_tables"]),
    ],
    ids=["muon", "adamw", "tables"],
)
def test_each_learning_rate_has_a_column(command, words: list[str], rates: list[str]):
    assert command(*RUN, *words, "schedule.warmup_steps=0")[0] == 0
    first = records()[0]
    assert [name for name in first if name.startswith("lr")] == rates
    optimizer = yaml.safe_load(Path("run/config.yaml").read_text())["optimizer"]
    keys = {"lr": "lr", "lr_adamw": "adamw_lr", "lr_tables": "table_lr"}
    assert [first[name] for name in rates] == pytest.approx([optimizer[keys[name]] for name in rates])


def test_the_norm_of_the_weights_and_the_memory_are_recorded(command):
    assert command(*RUN, "model.ngram_rows=[64]")[0] == 0
    weights = checkpoint.read(Path("run/checkpoints/last.ckpt")).model.state_dict()
    squares = sum(w.double().square().sum().item() for name, w in weights.items() if "tables" not in name)
    last = [record for record in records() if "weight_norm" in record][-1]
    assert last["step"] == 6
    assert last["weight_norm"] == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert 2**26 < last["peak_memory"] < 2**36


def test_the_same_prompts_are_continued_after_every_validation(command):
    assert command(*RUN, "callbacks.samples.max_new_tokens=8")[0] == 0
    found = samples()
    assert [(s["step"], s["prompt"], s["temperature"]) for s in found] == [
        (step, prompt, temperature)
        for step in (4, 6)
        for temperature in (0.0, 0.8)
        for prompt in ("", "To be, or not to")
    ]
    gpt = tinygpt.load("run/checkpoints/last.ckpt")
    for sample in found[4:]:
        again = gpt.generate(sample["prompt"], max_new_tokens=8, temperature=sample["temperature"])
        assert sample["text"] == again


@pytest.mark.parametrize(("line", "prompt"), [("ab", "ab"), ("€" * 9, "€" * 5)])
def test_the_prompt_is_the_beginning_of_one_document_and_of_whole_characters(command, line: str, prompt: str):
    Path("lines.txt").write_text(f"{line}\n" * 200, encoding="utf-8")
    words = ["data=lines", "data.files=lines.txt", "tokenizer=byte", "callbacks.samples.max_new_tokens=8"]
    assert command(*(word for word in TINY if not word.startswith("data")), *words, "data.batch_size=4")[0] == 0
    assert {sample["prompt"] for sample in samples()} == {"", prompt}


def test_samples_change_nothing_that_is_trained(command):
    assert command(*RUN, "run_dir=with")[0] == 0
    assert command(*RUN, "~callbacks.samples", "run_dir=without")[0] == 0
    assert not Path("without/samples.jsonl").exists()
    with_, without = (checkpoint.load(Path(run) / "checkpoints/last.ckpt")["state_dict"] for run in ("with", "without"))
    assert all(torch.equal(weight, without[name]) for name, weight in with_.items())


def test_samples_are_of_the_weights_that_are_validated(command):
    words = ["callbacks=weight_averaging", "callbacks.weight_averaging.decay=0.5", "callbacks.samples.max_new_tokens=8"]
    assert command(*RUN, *words)[0] == 0
    gpt = tinygpt.load("run/checkpoints/last.ckpt")
    assert samples()[-1]["text"] == gpt.generate(samples()[-1]["prompt"], max_new_tokens=8, temperature=0.8)


def test_a_prompt_that_the_tokenizer_does_not_know_is_told_before_anything_is_trained(command):
    status, _, err = command(*TINY, "tokenizer=char", "tokenizer.unknown=error", 'callbacks.samples.prompts=["李"]')
    assert (status, err.count("\n")) == (1, 1)
    assert "'李' is not in" in err


def test_a_run_that_goes_on_has_each_sample_once(command):
    assert command(*RUN)[0] == 0
    assert command("resume=run", "trainer.max_steps=9")[0] == 0
    assert [s["step"] for s in samples()] == [step for step in (4, 6, 8, 9) for _ in range(4)]


def test_several_loggers_record_the_same_figures(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert command(*RUN, "logger=[tensorboard,wandb]", "logger.wandb.log_checkpoints=true")[0] == 0
    losses = {int(r["step"]): r["train_loss"] for r in records() if "train_loss" in r}
    bits = {int(r["step"]): r["val_bits_per_byte"] for r in records() if "val_bits_per_byte" in r}

    events = EventAccumulator("run/tensorboard").Reload()
    assert {e.step: e.value for e in events.Scalars("train_loss")} == pytest.approx(losses)
    assert {e.step: e.value for e in events.Scalars("val_bits_per_byte")} == pytest.approx(bits)
    texts = [tag for tag in events.Tags()["tensors"] if tag.startswith("sample")]
    assert len(texts) == 4
    shown = events.Tensors(texts[-1])[-1].tensor_proto.string_val[0].decode()
    assert samples()[-1]["text"].split("\n")[-1] in shown

    kept = wandb_records(Path("run/wandb"))
    history = [
        {item.nested_key[0] if item.nested_key else item.key: item.value_json for item in r.history.item}
        for r in kept
        if r.HasField("history")
    ]
    at = "trainer/global_step"
    assert {int(h[at]): float(h["train_loss"]) for h in history if "train_loss" in h} == pytest.approx(losses)
    assert {int(h[at]): float(h["val_bits_per_byte"]) for h in history if "val_bits_per_byte" in h} == pytest.approx(
        bits
    )
    assert any("samples" in h for h in history)
    assert any("report" in h for h in history)
    settings = {
        update.key: json.loads(update.value_json) for r in kept for update in (*r.config.update, *r.run.config.update)
    }
    assert settings["model"]["n_embd"] == 16
    assert any(r.HasField("artifact") or r.request.HasField("log_artifact") for r in kept)
    assert any(r.HasField("exit") for r in kept)  # it is finished
    assert wandb.run is None


def test_wandb_does_nothing_where_its_own_switch_says_so(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    status, out, _ = command(*RUN, "logger=wandb")
    assert status == 0
    assert "sync" not in out
    assert not [*Path("run/wandb").glob("*run-*")]


@pytest.mark.parametrize("choice", ["csv", "none"])
def test_metrics_csv_alone_needs_no_logger(command, choice: str):
    assert command(*RUN, f"logger={choice}")[0] == 0
    assert not {path.name for path in Path("run").iterdir()} & {"wandb", "tensorboard"}
    assert records()
