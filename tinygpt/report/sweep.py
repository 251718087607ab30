"""A sweep's trials: which was the best, what each setting did, which settings mattered: sweep.html in its directory.

python -m tinygpt.report.sweep DIR

It is read from the trials' own files, be they of a grid or of a search, and may be written while the sweep runs.
"""

import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinygpt.config import command_line
from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.report.compare import differing
from tinygpt.report.page import Cell, Line, chart, code, figure, section, table, write
from tinygpt.report.run import Run, read

HTML = "sweep.html"
VALUE = "bits per byte"
WIDE = 10.0  # times the least of a setting's values that the largest must be for a logarithmic axis
ENOUGH = 4  # trials, before it can be said what mattered


def build(directory: Path) -> Path:
    """Write a sweep's report; returns its path.

    Raises:
        UserError: there is no trial that has begun to train.
    """
    names = sorted(int(path.name) for path in directory.glob("*") if path.name.isdecimal() and path.is_dir())
    runs, broken = [], []
    for name in names:
        try:
            runs.append(read(directory / str(name)))
        except UserError:
            broken.append(str(name))
    if not runs:
        raise UserError(f"{directory} is not the directory of a sweep of which a trial has begun to train")
    runs.sort(key=lambda run: (_value(run) is None, _value(run)))
    settings = differing(runs)
    done = [run for run in runs if _value(run) is not None]
    body = f"<h1>{directory.resolve().name}</h1><p>{len(done)} of {len(names)} trials have a result.</p>"
    if done:
        body += section(
            f"The best: trial {done[0].name}, {_value(done[0]):.4f} bits per byte",
            "<p>What trains with its settings; those that the sweep gave every trial are in its config.yaml.</p>",
            code(command(done[0])),
        )
    rows = [
        (
            Cell(f'<a href="{run.name}/report.html">{run.name}</a>'),
            run.summary["status"],
            Cell("" if _value(run) is None else f"{_value(run):.4f}", "number best" if run is runs[0] else "number"),
            run.summary["step"],
            round(run.summary["train_seconds"]),
            run.summary["n_parameters"],
            *(values[i] for values in settings.values()),
        )
        for i, run in enumerate(runs)
    ]
    head = ("trial", "status", VALUE, "steps", "seconds", "parameters", *settings)
    body += section("All trials", table(rows, head))
    if broken:
        body += f"<p>Without a result, having failed before the first step: {', '.join(broken)}.</p>"
    places = [runs.index(run) for run in done]
    searched = {key: [values[i] for i in places] for key, values in settings.items()}
    searched = {key: values for key, values in searched.items() if len(set(map(str, values))) > 1}
    if len(done) > 1 and searched:
        body += _charts(done, searched)
    write(directory / HTML, f"{directory.resolve().name} · tinygpt", body)
    return directory / HTML


def command(run: Run) -> str:
    """What trains with a trial's settings."""
    words = shlex.split(run.facts["commands"][0])  # python train.py …
    own = ("sweep=", "sweep.", "run_dir=", "hydra", "-")
    return command_line([word for word in words[2:] if not word.startswith(own)])


def _value(run: Run) -> float | None:
    return run.summary["best_val_bits_per_byte"] if run.summary["status"] == "completed" else None


def _charts(runs: Sequence[Run], settings: dict[str, list[Any]]) -> str:
    import optuna
    from optuna.visualization import plot_parallel_coordinate, plot_param_importances

    values = [_value(run) or 0.0 for run in runs]
    spaces = {key: _distribution(found) for key, found in settings.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for i, value in enumerate(values):
        parameters = {key: _plain(found[i]) for key, found in settings.items()}
        study.add_trial(optuna.create_trial(params=parameters, distributions=spaces, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna's, that some of it is experimental
        lines = plot_parallel_coordinate(study, target=lambda trial: trial.value or 0.0, target_name=VALUE)
        charts = [figure("All at once: the darker, the better", lines, height=420, wide=True)]
        if len(runs) >= ENOUGH:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            bars = plot_param_importances(study, evaluator=evaluator)
            charts.append(figure("How much each mattered", bars, height=120 + 40 * len(settings), wide=True))
    names = [f"trial {run.name}" for run in runs]
    for key, found in settings.items():
        points = Line(key, [_plain(value) for value in found], values, "markers", names)
        charts.append(chart(key, [points], "", VALUE, log_x=getattr(spaces[key], "log", False)))
    return section("What each setting did", f'<div class="charts">{"".join(charts)}</div>')


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _distribution(values: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    plain = [_plain(value) for value in values]
    if any(isinstance(value, str) for value in plain):
        return CategoricalDistribution(sorted(set(map(str, values))))
    low, high = min(plain), max(plain)
    return FloatDistribution(low, high, log=low > 0 and high / low >= WIDE)


def main() -> None:
    p = Parser(prog="python -m tinygpt.report.sweep", description="Write the report of a sweep, sweep.html, anew.")
    p.add_argument("directory", type=Path, metavar="DIR", help="the sweep's directory, which holds its trials")
    print(build(p.parse_args().directory))


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.sweep: {one_line(error)}")
