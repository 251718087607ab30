"""What a run was, how it went and what it has learned: report.html in its directory.

python -m tinygpt.report.run RUN_DIR

Everything in it is read from the run's files, so that a running run has a report, and a dead one too.
"""

import csv
import json
import shlex
import sys
from html import escape
from math import isfinite, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from tinygpt import files
from tinygpt.config import command_line, flat, typed
from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.generation.streaming import IncrementalDecoder
from tinygpt.generation.text import TextGenerator, load
from tinygpt.report import attention
from tinygpt.report.attention import look, visible
from tinygpt.report.page import Cell, Line, chart, code, section, shown, table, write

LOOKED_AT = 48  # tokens of the passage that the attention maps are of
SURPRISING = 8.0  # bits, from which a token has the strongest colour
LARGE = 2**28  # bytes of a checkpoint, which take seconds to read and to check
HTML = "report.html"


class Run(NamedTuple):
    """A run's files.

    Attributes:
        path: its directory.
        summary, facts: summary.json and facts.json.
        config: config.yaml as it is written.
        records: metrics.csv, by column the steps and the values of the rows that have one.
        samples: samples.jsonl.
    """

    path: Path
    summary: dict[str, Any]
    facts: dict[str, Any]
    config: str
    records: dict[str, tuple[list[int], list[float]]]
    samples: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def settings(self) -> dict[str, Any]:
        """Every value of its configuration by its dotted name, but for where it lies."""
        return {key: value for key, value in flat(yaml.safe_load(self.config)).items() if key != "run_dir"}

    def line(self, column: str, name: str | None = None, mode: str = "lines") -> Line:
        """A column of metrics.csv over the steps."""
        x, y = self.records.get(column, ([], []))
        return Line(name or column, x, y, mode)


def read(path: Path) -> Run:
    """The files of a run's directory.

    Raises:
        UserError: it is no run's directory, or the run has not begun to train.
    """
    try:
        summary, facts = (json.loads((path / name).read_text("utf-8")) for name in ("summary.json", "facts.json"))
        config = (path / "config.yaml").read_text("utf-8")
        with (path / "metrics.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not the directory of a run that has begun to train: {one_line(error)}") from error
    records: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for column, value in row.items():
            if value and isfinite(float(value)):
                x, y = records.setdefault(column, ([], []))
                x.append(int(row["step"]))
                y.append(float(value))
    return Run(path, summary, facts, config, records, files.read_json_lines(path / "samples.jsonl"))


def build(run_dir: Path) -> Path:
    """Write a run's report; returns its path.

    Raises:
        UserError: it is no run's directory, or the run has not begun to train.
    """
    run = read(run_dir)
    body = "\n".join(part for part in (_head(run), _curves(run), _samples(run), _model(run), _rest(run)) if part)
    write(run_dir / HTML, f"{run.name} · tinygpt", body)
    return run_dir / HTML


def figures(run: Run) -> list[tuple[str, Any]]:
    """What a run has reached and cost, by what it is called."""
    s = run.summary
    minutes, seconds = divmod(round(s["train_seconds"]), 60)
    return [
        ("best validation loss, nats a token", _four(s["best_val_loss"])),
        ("best bits per byte", _four(s["best_val_bits_per_byte"])),
        ("optimizer steps", s["step"]),
        ("tokens seen", s["tokens_seen"]),
        ("epochs", s["epoch"]),
        ("of training, min:s", f"{minutes:,}:{seconds:02}"),
        ("tokens a second", s["tokens_per_second"] and round(s["tokens_per_second"])),
        ("of the device's peak", "n/a" if s["utilisation"] is None else f"{s['utilisation']:.0%}"),
        ("parameters", s["n_parameters"]),
        ("floating-point operations", f"{s['flops']:.2e}"),
    ]


def _four(loss: float | None) -> str | None:
    """To the digits in which losses are compared."""
    return None if loss is None else f"{loss:.4f}"


def again(run: Run) -> str:
    """The command of a run that is the same anywhere else; of a sweep's trial with what the sweep gave it."""
    words = shlex.split(run.facts["commands"][0])[2:]  # python train.py …
    kept = [word for word in words if not word.startswith(("sweep=", "sweep.", "run_dir="))]
    if any(word.startswith("sweep=") for word in words):
        keys = {word.partition("=")[0] for word in kept}
        given = ("trainer.max_steps", "trainer.max_time", "eval_every")
        kept += [typed(key, str(run.settings[key])) for key in given if key in run.settings and key not in keys]
    return command_line(kept)


def _head(run: Run) -> str:
    s, machine = run.summary, run.facts["machine"]
    boxes = "".join(
        f"<div><b>{escape(shown(value)) or 'none yet'}</b><span>{name}</span></div>" for name, value in figures(run)
    )
    where = f"{machine['processor']}, {s['precision']}"
    directory = str(run.path)
    resume = f"python train.py {typed('resume', directory)}"
    return (
        f'<h1>{escape(run.name)} <span class="status {s["status"]}">{s["status"]}</span></h1>\n<p>{escape(where)}</p>\n'
        f'<div class="figures">{boxes}</div>\n'
        + section(
            "Again",
            "<p>The same training, the same run further, and what it writes:</p>",
            code(again(run), resume, f"python generate.py --checkpoint {shlex.quote(directory)}"),
        )
    )


def _curves(run: Run) -> str:
    val = run.line("val_loss", "validation", "lines+markers")
    losses = [run.line("train_loss", "training"), val]
    finite = [(y, x) for x, y in zip(val.x, val.y, strict=True)]
    if finite:
        loss, step = min(finite)
        losses.append(Line(f"best, {loss:.4f}", [step], [loss], "markers"))
    rates = [run.line(name) for name in run.records if name == "lr" or name.startswith("lr_")]
    charts = [
        chart("Loss, nats a token", losses, "optimizer step", "nats", wide=True),
        chart("Learning rate", rates, "optimizer step", ""),
        chart("Throughput", [run.line("tokens_per_second")], "optimizer step", "tokens/s"),
        chart("Gradient norm, before clipping", [run.line("grad_norm")], "optimizer step", ""),
        chart("Weight norm", [run.line("weight_norm")], "optimizer step", ""),
    ]
    return section("How it went", f'<div class="charts">{"".join(charts)}</div>')


def _samples(run: Run) -> str:
    if not run.samples:
        return ""
    steps = sorted({sample["step"] for sample in run.samples})
    parts = []
    for prompt in dict.fromkeys(sample["prompt"] for sample in run.samples):
        temperatures = sorted({sample["temperature"] for sample in run.samples})
        by = {(s["step"], s["temperature"]): s["text"] for s in run.samples if s["prompt"] == prompt}
        rows = [
            (step, *(_continued(prompt, by.get((step, temperature), "")) for temperature in temperatures))
            for step in reversed(steps)
        ]
        head = ("step", *(f"temperature {temperature:g}" for temperature in temperatures))
        lines = table(rows[:1], head), table(rows[1:], head)
        parts.append(lines[0])
        if rows[1:]:
            parts.append(f"<details><summary>the {len(rows) - 1} before it</summary>{lines[1]}</details>")
    return section("What it writes", "<p>The same prompts, in grey, continued after each validation.</p>", *parts)


def _continued(prompt: str, text: str) -> Cell:
    return Cell(f"<i>{escape(prompt)}</i>{escape(text)}", "text")


def _model(run: Run) -> str:
    """What the best checkpoint makes of a passage of the validation text; of a large one at the end alone."""
    sizes = [path.stat().st_size for path in run.path.glob("checkpoints/*.ckpt")]
    if run.summary["status"] == "running" and max(sizes, default=0) > LARGE:
        return ""
    try:
        generator = load(run.path, device="cpu")
    except UserError:  # there is no checkpoint yet
        return ""
    ids = torch.tensor(run.facts["data"]["passage"])
    seen = ids[:-1][:LOOKED_AT]
    tokens = [visible(generator.tokenizer.decode([i])) for i in seen.tolist()]
    heads = look(generator.model, seen)
    ends = sorted({0, len(heads.weights) - 1})
    heads = attention.Heads(heads.weights[ends], heads.allowed[ends])
    return section("What surprises it", *_surprise(generator, ids)) + section(
        "Where each head looks", attention.section(heads, tokens, [end + 1 for end in ends])
    )


@torch.inference_mode()
def _surprise(generator: TextGenerator, ids: torch.Tensor) -> tuple[str, str]:
    logprobs = generator.model(ids[None, :-1])[0].float().log_softmax(-1)
    bits = (-logprobs.gather(1, ids[1:, None])[:, 0] / log(2)).tolist()
    guesses = logprobs.argmax(-1).tolist()
    spans, texts = [], IncrementalDecoder(generator.tokenizer)
    texts.add(int(ids[0]))
    for token, bit, guess in zip(ids[1:].tolist(), bits, guesses, strict=True):
        text = texts.add(token) if token != generator.tokenizer.end_of_text else "∎\n"
        told = f"{bit:.1f} bits; likeliest: {visible(generator.tokenizer.decode([guess]))}"
        spans.append(f'<span style="--s:{min(1.0, bit / SURPRISING):.2f}" title="{escape(told)}">{escape(text)}</span>')
    mean = sum(bits) / len(bits)
    told = (
        f"The beginning of the validation text, {mean:.2f} bits a token: the redder a token, the less it was foreseen."
        " Point at one for how much, and for what was likeliest."
    )
    return f"<p>{told}</p>", f'<div class="passage text">{"".join(spans)}</div>'


def _rest(run: Run) -> str:
    data = run.facts["data"]
    splits = ("training", "validation")
    rows = [(name.replace("_", " "), *(data[split][name] for split in splits)) for name in data["training"]]
    machine = run.facts["machine"] | run.facts["versions"]
    later = run.facts["commands"][1:]
    return section(
        "The text",
        table(rows, ("", *splits)),
        f"<p>{data['vocabulary']:,} tokens in the vocabulary; validated on {data['validated_tokens']:,} tokens.</p>",
    ) + section(
        "All settings",
        f"<details><summary>config.yaml</summary>{code(run.config)}</details>",
        f"<details><summary>how it was gone on with</summary>{code(*later)}</details>" if later else "",
        "<details><summary>machine and versions</summary>"
        + table((name.replace("_", " "), str(value)) for name, value in machine.items())
        + "</details>",
    )


def main() -> None:
    p = Parser(prog="python -m tinygpt.report.run", description="Write the report of a run, report.html, anew.")
    p.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's directory")
    print(build(p.parse_args().run_dir))


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.run: {one_line(error)}")
