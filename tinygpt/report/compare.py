"""Runs side by side: what they reached, where their settings differ, their curves, what they write.

python -m tinygpt.report.compare RUN_DIR RUN_DIR …
"""

import sys
from collections.abc import Iterable, Sequence
from html import escape
from math import nan
from pathlib import Path
from typing import Any

from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.report.page import Cell, chart, section, shown, table, write
from tinygpt.report.record import BITS_PER_BYTE, Run, figures, read


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, by their names; None where a run has no such setting."""
    settings = [run.settings for run in runs]
    keys = sorted(set().union(*settings))
    values = {key: [each.get(key) for each in settings] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def build(run_dirs: Sequence[Path], out: Path) -> None:
    """Write the page.

    Raises:
        UserError: there is no such run, or it has not begun to train.
    """
    runs = [read(path) for path in run_dirs]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):  # trials of several sweeps
        names = [str(run.path) for run in runs]
    lowest = min((value for run in runs if (value := run.summary["best_val_bits_per_byte"]) is not None), default=nan)
    rows = [
        _row(row[0][0], (value for _, value in row), f"{lowest:.4f}" if row[0][0] == BITS_PER_BYTE else None)
        for row in zip(*map(figures, runs), strict=True)
    ]
    rows.append(_row("status", (run.summary["status"] for run in runs)))
    settings = [_row(key, values) for key, values in differing(runs).items()]
    curves = [
        chart(
            title,
            [run.line(column, name, mode) for run, name in zip(runs, names, strict=True)],
            "optimizer step",
            unit,
            wide=column == "val_loss",
        )
        for title, column, unit, mode in (
            ("Validation loss", "val_loss", "nats a token", "lines+markers"),
            ("Training loss", "train_loss", "nats a token", "lines"),
            ("Throughput", "tokens_per_second", "tokens/s", "lines"),
        )
    ]
    samples = [
        (name, Cell(f"<i>{escape(run.samples[-1]['prompt'])}</i>{escape(run.samples[-1]['text'])}", "text"))
        for run, name in zip(runs, names, strict=True)
        if run.samples
    ]
    body = (
        f"<h1>{len(runs)} runs</h1>"
        + table(rows, ("", *names))
        + section("Where their settings differ", table(settings, ("", *names)))
        + section("How they went", f'<div class="charts">{"".join(curves)}</div>')
        + section("What they write", table(samples))
    )
    write(out, "Runs side by side · tinygpt", body)


def _row(name: str, values: Iterable[Any], best: str | None = None) -> tuple[str, *tuple[Cell, ...]]:
    """Of a table with a column a run."""
    return name, *(Cell(escape(shown(value)), "value best" if value == best else "value") for value in values)


def main() -> None:
    p = Parser(prog="python -m tinygpt.report.compare", description="Put runs side by side on one HTML page.")
    p.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="the directories of runs")
    p.add_argument("--out", type=Path, default=Path("compare.html"), metavar="FILE", help="(default: compare.html)")
    args = p.parse_args()
    build(args.run_dirs, args.out)
    print(args.out)


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.compare: {one_line(error)}")
