"""The reports of a run, of runs side by side, of a sweep."""

import csv
import json
import re
import shlex
import shutil
import sys
from html import escape, unescape
from math import log
from pathlib import Path

import pytest
import torch
from optuna.distributions import IntDistribution
from optuna.trial import TrialState

import tinygpt
from tests.conftest import TINY
from tinygpt.errors import UserError
from tinygpt.files import alone
from tinygpt.model.loss import next_token_loss
from tinygpt.report import compare, run, sweep
from tinygpt.report.page import shown
from tinygpt.report.record import Run, again, read
from tinygpt.sweep.study import Search


def page(path: str) -> str:
    """A page without Plotly's library."""
    return re.sub(r"<script>/\*.*?</script>", "", Path(path).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_a_runs_report_says_what_was_run_how_it_went_and_what_it_writes(command):
    words = [*TINY, "tokenizer=byte", "callbacks.samples.prompts=['<b>&']", "callbacks.samples.max_new_tokens=8"]
    status, _, err = command(*words)
    assert (status, err) == (0, "")
    html = page("run/report.html")
    assert "completed" in html
    (again, *others) = [unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)]
    assert shlex.split(again) == ["python", "train.py", *(word for word in words if word != "run_dir=run")]
    assert "python train.py resume=run" in others
    assert "the same run further, to a larger trainer.max_steps= or trainer.max_time=, and" in html
    summary = json.loads(Path("run/summary.json").read_text())
    assert f"<b>{summary['best_val_loss']:.4f}</b>" in html
    assert f"best, {summary['best_val_loss']:.4f}" in html
    samples = [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]
    assert all(f"<i>&lt;b&gt;&amp;</i>{escape(sample['text'])}" in html for sample in samples)
    for heading in ("How it went", "What it writes", "What surprises it", "Where each head looks", "The text"):
        assert f"<h2>{heading}</h2>" in html
    assert "http" not in html  # self-contained
    with Path("run/metrics.csv").open(newline="") as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]
    assert read(Path("run")).line("train_loss").y == losses


def test_the_passage_is_as_surprising_as_its_loss(command):
    assert command(*TINY, "tokenizer=byte")[0] == 0
    gpt = tinygpt.load("run")
    ids = torch.tensor(json.loads(Path("run/facts.json").read_text())["data"]["passage"])
    assert gpt.tokenizer.decode(ids.tolist()) == "To be, or not to"
    with torch.no_grad():
        loss = next_token_loss(gpt.model(ids[None, :-1]), ids[None, 1:]).item()
    html = page("run/report.html")
    assert f"{loss / log(2):.2f} bits a token" in html
    bits = [float(found) for found in re.findall(r'title="([\d.]+) bits; likeliest', html)]
    assert len(bits) == 16
    assert sum(bits) / 16 == pytest.approx(loss / log(2), abs=0.06)  # rounded


def test_a_run_without_a_checkpoint_or_samples_has_a_report(command):
    assert command(*TINY)[0] == 0
    shutil.rmtree("run/checkpoints")
    Path("run/samples.jsonl").unlink()
    run.build(Path("run"))
    html = page("run/report.html")
    assert "How it went" in html
    assert "What surprises it" not in html
    assert "What it writes" not in html


def test_a_run_that_was_killed_is_told_from_one_that_goes_on(command):
    assert command(*TINY)[0] == 0
    summary = Path("run/summary.json")
    summary.write_text(summary.read_text().replace("completed", "running"))
    with alone(Path("run")):
        assert read(Path("run")).summary["status"] == "running"
    assert read(Path("run")).summary["status"] == "killed"


def test_a_run_that_fails_has_a_report_that_says_so(command):
    assert command(*TINY, "model=gpt2", "optimizer.lr=1e30", "trainer.gradient_clip_val=0.0", "eval_every=1")[0] == 1
    assert 'class="status failed"' in page("run/report.html")


def test_a_report_that_cannot_be_written_does_not_fail_the_run(command, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path) -> Path:
        raise ValueError("no ink")

    monkeypatch.setattr(run, "build", refuse)
    status, _, err = command(*TINY)
    assert (status, set(err.splitlines())) == (0, {"train.py: the report could not be written: no ink"})


def test_runs_are_compared_by_where_they_differ(
    command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    for seed, layers in ((1, 1), (2, 2)):
        assert command(*TINY, f"seed={seed}", f"model.n_layer={layers}", f"run_dir=run{seed}")[0] == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["compare", "run1", "run2", "--out", "both.html"])
    compare.main()
    assert capsys.readouterr().out == "both.html\n"
    assert compare.differing([read(Path(f"run{i}")) for i in (1, 2)]) == {"model.n_layer": [1, 2], "seed": [1, 2]}
    html = page("both.html")
    summaries = [json.loads(Path(f"run{i}/summary.json").read_text()) for i in (1, 2)]
    bits = sorted(summary["best_val_bits_per_byte"] for summary in summaries)
    assert re.findall(r'<td class="value best">(.*?)</td>', html) == [f"{bits[0]:.4f}"]
    assert f'<td class="value">{bits[1]:.4f}</td>' in html
    assert all(f'<td class="value">{summary["best_val_loss"]:.4f}</td>' in html for summary in summaries)
    assert "http" not in html


def test_a_sweeps_report_has_every_trial_the_best_one_first(command):
    for number, lr in enumerate((0.001, 0.01, 0.03)):
        assert command(*TINY, f"optimizer.lr={lr}", f"run_dir=sweep/{number}")[0] == 0
    Path("sweep/3").mkdir()  # a trial that failed before it had begun
    assert command(*TINY, "optimizer.lr=1e30", "run_dir=sweep/4")[0] == 1
    sweep.build(Path("sweep"))
    html = page("sweep/sweep.html")
    reached = [json.loads(Path(f"sweep/{i}/summary.json").read_text())["best_val_bits_per_byte"] for i in range(3)]
    order = sorted(range(3), key=reached.__getitem__)
    assert [int(n) for n in re.findall(r'<a href="(\d)/report.html">', html)] == [*order, 4]
    lr = (0.001, 0.01, 0.03)[order[0]]
    words = " ".join(word for word in TINY if not word.startswith("run_dir"))
    assert f"<pre>python train.py {words} optimizer.lr={lr}</pre>" in html
    assert f"The best: trial {order[0]}, {reached[order[0]]:.4f} bits per byte" in html
    why = json.loads(Path("sweep/4/summary.json").read_text())["reason"]
    assert re.match(r"the (loss|gradient's norm) is (nan|inf) at step ", why)
    assert html.count(escape(why)) == 1
    assert '<td class="number">1e+30</td>' in html
    assert "3 of 5 trials have a result, 0 were pruned" in html
    assert "Without a record, for they failed before the first step, or begin just now: 3." in html
    assert "optimizer.lr</h3>" in html
    assert "http" not in html


def test_a_searchs_report_ranks_by_what_it_minimised(command):
    assert command(*TINY, "run_dir=sweep/0")[0] == 0
    for number, loss, bits in ((1, 1.5, 2.5), (2, 1.25, 2.75), (3, 1.0, 2.0)):
        shutil.copytree("sweep/0", f"sweep/{number}")
        path = Path(f"sweep/{number}/summary.json")
        summary = json.loads(path.read_text()) | {"best_val_loss": loss, "best_val_bits_per_byte": bits}
        path.write_text(json.dumps(summary))
    search = Search(Path("sweep"), {"seed": IntDistribution(1, 9)}, [], "best_val_loss", seed=1)
    search.ask(4)
    search.study.tell(3, state=TrialState.PRUNED)
    sweep.build(Path("sweep"))
    html = page("sweep/sweep.html")
    assert [int(n) for n in re.findall(r'<a href="(\d)/report.html">', html)] == [2, 1, 0, 3]
    assert "The best: trial 2, 1.2500 nats a token" in html
    assert "3 of 4 trials have a result, 1 were pruned" in html


def test_what_a_result_depends_on_is_what_mattered():
    values = [float(i) for i in range(20)]
    settings = {"a": [0.001 * 1.5**i for i in range(20)], "b": ["x", "y"] * 10}
    shares = sweep._importance(values, settings)
    assert [*shares] == ["a", "b"]
    assert shares["a"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)


def test_a_trials_command_has_what_the_sweep_gave_it():
    words = "python train.py sweep=optuna sweep.n_trials=3 optimizer.lr=0.01 eval_every=20 run_dir=sweep/7"
    config = "trainer: {max_steps: 300, max_time: null}\neval_every: 20\nrun_dir: sweep/7\n"
    trial = Run(Path("sweep/7"), {}, {"commands": [words]}, config, {}, [])
    assert again(trial) == ("python train.py optimizer.lr=0.01 eval_every=20 trainer.max_steps=300")


@pytest.mark.parametrize("build", [run.build, sweep.build, lambda path: compare.build([path], path / "x.html")])
def test_a_directory_that_is_none_is_named(build):
    Path("empty").mkdir()
    with pytest.raises(UserError, match="empty is not the directory of a"):
        build(Path("empty"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (3, "3"),
        (1234567, "1,234,567"),
        (1.23456, "1.235"),
        (0.0001234, "0.0001234"),
        (12345.6, "12,346"),
        (True, "True"),
        ("a", "a"),
        (2.0, "2"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_are_shown_as_a_reader_wants_them(value, text: str):
    assert shown(value) == text


@pytest.mark.parametrize("name", ["summary.json", "facts.json", "metrics.csv", "samples.jsonl"])
def test_a_damaged_file_of_a_run_is_named(command, name: str):
    assert command(*TINY, "run_dir=sweep/0")[0] == 0
    shutil.copytree("sweep/0", "sweep/1")
    file = Path("sweep/1", name)
    file.write_text(file.read_text().splitlines(keepends=True)[0] + "{1,x\n")
    with pytest.raises(UserError, match=f"^sweep/1/{name} is damaged: "):
        run.build(Path("sweep/1"))
    sweep.build(Path("sweep"))  # which has the others
    html = page("sweep/sweep.html")
    assert "1 of 2 trials have a result" in html
    assert f"sweep/1/{name} is damaged: " in html


def test_a_row_that_is_just_being_written_is_not_read(command):
    assert command(*TINY)[0] == 0
    before = read(Path("run")).records
    with Path("run/metrics.csv").open("a") as file:
        file.write("7,0.1,2.")
    assert read(Path("run")).records == before
