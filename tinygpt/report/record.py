"""A run as its directory tells it: what every report is made of."""

import csv
import json
import shlex
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from tinygpt import files
from tinygpt.config import command_line, flat, typed
from tinygpt.errors import UserError, one_line
from tinygpt.report.page import Line

T = TypeVar("T")

BITS_PER_BYTE = "best bits per byte"  # by which runs are compared, whatever their tokenizers


class Run(NamedTuple):
    """A run's files.

    Attributes:
        path: its directory.
        summary, facts: summary.json and facts.json; the status of a run that was killed is "killed".
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
        summary, facts = (_parsed(path / name, _json) for name in ("summary.json", "facts.json"))
        config = _parsed(path / "config.yaml", _text)
        records = _parsed(path / "metrics.csv", _columns)
        samples = _parsed(path / "samples.jsonl", files.read_json_lines)
    except OSError as error:
        raise UserError(f"{path} is not the directory of a run that has begun to train: {one_line(error)}") from error
    if summary["status"] == "running" and not files.is_taken(path):
        summary["status"] = "killed"  # it could not say so itself
    return Run(path, summary, facts, config, records, samples)


def _parsed(path: Path, parse: Callable[[Path], T]) -> T:
    try:
        return parse(path)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {one_line(error)}") from error


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _json(path: Path) -> dict[str, Any]:
    return json.loads(_text(path))


def _columns(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    records: dict[str, tuple[list[int], list[float]]] = {}
    lines = _text(path).splitlines(keepends=True)
    for row in csv.DictReader(line for line in lines if line.endswith("\n")):  # the last may just be being written
        for column, value in row.items():
            if value and isfinite(float(value)):
                x, y = records.setdefault(column, ([], []))
                x.append(int(row["step"]))
                y.append(float(value))
    return records


def figures(run: Run) -> list[tuple[str, Any]]:
    """What a run has reached and cost, by what it is called."""
    s = run.summary
    minutes, seconds = divmod(round(s["train_seconds"]), 60)
    return [
        ("best validation loss, nats a token", _four(s["best_val_loss"])),
        (BITS_PER_BYTE, _four(s["best_val_bits_per_byte"])),
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
