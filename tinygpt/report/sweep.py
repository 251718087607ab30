"""A sweep's trials: which was the best, what each setting did, which settings mattered: sweep.html in its directory.

python -m tinygpt.report.sweep DIR

It is read from the trials' own files, be they of a grid or of a search, and may be written while the sweep runs.
"""

import sys
import warnings
from collections.abc import Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Any

from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.report.compare import differing
from tinygpt.report.page import COLORS, GREY, Cell, Line, chart, code, figure, section, table, write
from tinygpt.report.record import again, read
from tinygpt.sweep import JOURNAL, METRICS

HTML = "sweep.html"
WIDE = 10.0  # times the least of a setting's values that the largest must be for a logarithmic axis
ENOUGH = 20  # trials, before it can be said what mattered


def build(directory: Path) -> Path:
    """Write a sweep's report; returns its path.

    Raises:
        UserError: there is no trial that has begun to train.
    """
    names = sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal() and path.is_dir())
    runs, broken, failed = [], [], []
    for name in names:
        try:
            runs.append(read(directory / str(name)))
        except UserError as error:
            if (directory / str(name) / "summary.json").exists():
                failed.append((str(name), str(error)))
            else:
                broken.append(str(name))
    if not runs:
        raise UserError(f"{directory} is not the directory of a sweep of which a trial has begun to train")
    metric, pruned = _search(directory)
    unit = METRICS[metric]
    values = {run.name: run.summary[metric] if run.summary["status"] == "completed" else None for run in runs}
    runs.sort(key=lambda run: (run.name in pruned, values[run.name] is None, values[run.name]))
    settings = differing(runs)
    done = [run for run in runs if run.name not in pruned and values[run.name] is not None]
    told = f"{len(done)} of {len(names)} trials have a result, {len(pruned)} were pruned."
    body = f"<h1>{escape(directory.resolve().name)}</h1><p>{told}</p>"
    if done:
        body += section(
            f"The best: trial {done[0].name}, {values[done[0].name]:.4f} {unit}",
            code(again(done[0])),
        )
    rows = [
        (
            Cell(f'<a href="{run.name}/report.html">{run.name}</a>'),
            "pruned" if run.name in pruned else run.summary["status"],
            Cell(
                "" if values[run.name] is None else f"{values[run.name]:.4f}",
                "number best" if [run] == done[:1] else "number",
            ),
            run.summary["step"],
            round(run.summary["train_seconds"]),
            run.summary["n_parameters"],
            *(values[i] for values in settings.values()),
        )
        for i, run in enumerate(runs)
    ]
    head = ("trial", "status", unit, "steps", "seconds", "parameters", *settings)
    body += section("All trials", table(rows, head))
    if broken:
        body += (
            f"<p>Without a record, for they failed before the first step, or begin just now: {', '.join(broken)}.</p>"
        )
    failed += [(run.name, run.summary["reason"]) for run in runs if run.summary["reason"]]
    if failed:
        body += f"<p>Why trials have no result:</p>{table(failed, ('trial', ''))}"
    searched = {key: values[: len(done)] for key, values in settings.items()}
    searched = {key: values for key, values in searched.items() if len(set(map(str, values))) > 1}
    if len(done) > 1 and searched:
        body += _charts([run.name for run in done], [run.summary[metric] for run in done], unit, searched)
    write(directory / HTML, f"{directory.resolve().name} · tinygpt", body)
    return directory / HTML


def _search(directory: Path) -> tuple[str, set[str]]:
    """What a sweep makes low, and the names of the trials that it gave up before their end; a grid gives up none."""
    if not (directory / JOURNAL).exists():
        return "best_val_bits_per_byte", set()
    from optuna.trial import TrialState

    from tinygpt.sweep.study import load

    study = load(directory)
    return study.user_attrs["metric"], {str(t.number) for t in study.get_trials(states=[TrialState.PRUNED])}


def _charts(trials: Sequence[str], values: Sequence[float], unit: str, settings: dict[str, list[Any]]) -> str:
    from plotly.graph_objects import Bar, Figure

    parallel = figure("All at once: the more orange, the better", _parallel(values, unit, settings), height=420)
    charts = [f'<div class="wide scroll">{parallel}</div>']
    if len(trials) >= ENOUGH:
        shares = _importance(values, settings)
        bars = Figure(Bar(x=[*shares.values()][::-1], y=[*shares][::-1], orientation="h", hoverinfo="x"))
        charts.append(figure("How much each mattered, of all together", bars, height=90 + 35 * len(shares), wide=True))
    names = [f"trial {trial}" for trial in trials]
    for key, found in settings.items():
        points = Line(key, [*map(_plain, found)], values, "markers", names)
        charts.append(chart(key, [points], "", unit, log_x=_is_log(found)))
    return section("What each setting did", f'<div class="charts">{"".join(charts)}</div>')


def _parallel(values: Sequence[float], unit: str, settings: dict[str, list[Any]]) -> Any:
    """Each trial as a line through its settings and what it reached."""
    from plotly.graph_objects import Figure, Parcoords

    dimensions: list[dict[str, Any]] = [{"label": unit, "values": values}]
    for key, found in settings.items():
        plain = [*map(_plain, found)]
        axis: dict[str, Any] = {"label": key.rpartition(".")[2], "values": plain}
        if _is_log(found):
            ticks = sorted(
                {min(plain), max(plain), *(10.0**n for n in range(-9, 9) if min(plain) < 10.0**n < max(plain))}
            )
            axis |= {"values": [*map(log10, plain)], "tickvals": [*map(log10, ticks)]}
            axis["ticktext"] = [f"{tick:.2g}" for tick in ticks]
        elif any(isinstance(value, str) for value in plain):
            kinds = sorted(set(map(str, plain)))
            places = [kinds.index(str(value)) for value in plain]
            axis |= {"values": places, "tickvals": [*range(len(kinds))], "ticktext": kinds}
        dimensions.append(axis)
    line = {"color": values, "colorscale": [[0, COLORS[1]], [1, GREY]], "showscale": True}
    unseen = {"color": "rgba(0,0,0,0)"}  # a range beside the ticks is too much
    lines = Parcoords(line=line, dimensions=dimensions, tickfont={"color": GREY}, rangefont=unseen)
    return Figure(lines, layout={"margin": {"t": 40}})  # for the axes' names, which stand above them


def _importance(values: Sequence[float], settings: dict[str, list[Any]]) -> dict[str, float]:
    """The share that each setting has in what is good, the largest first.

    Source: Watanabe et al., PED-ANOVA, 2023, as Optuna has it.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    spaces = {key: _distribution(found) for key, found in settings.items()}
    for i, value in enumerate(values):
        parameters = {
            key: str(found[i]) if isinstance(spaces[key], optuna.distributions.CategoricalDistribution) else found[i]
            for key, found in settings.items()
        }
        study.add_trial(optuna.create_trial(params=parameters, distributions=spaces, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna's, that it is experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _is_log(values: Sequence[Any]) -> bool:
    """Whether a logarithmic axis suits them."""
    numbers = [*map(_plain, values)]
    return not any(isinstance(v, str) for v in numbers) and min(numbers) > 0 and max(numbers) >= WIDE * min(numbers)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _distribution(values: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    plain = [*map(_plain, values)]
    if any(isinstance(value, str) for value in plain):
        return CategoricalDistribution(sorted(set(map(str, plain))))
    return FloatDistribution(min(plain), max(plain), log=_is_log(values))


def main() -> None:
    p = Parser(prog="python -m tinygpt.report.sweep", description="Write the report of a sweep, sweep.html, anew.")
    p.add_argument("directory", type=Path, metavar="DIR", help="the sweep's directory, which holds its trials")
    print(build(p.parse_args().directory))


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.sweep: {one_line(error)}")
