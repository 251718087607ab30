"""Hydra's side of a sweep: what `python train.py -m sweep=optuna` does, and the report that every sweep ends with.

Hydra takes plugins from a package of this name alone. The search itself is `tinygpt/sweep/`. Hydra's own plugin for
Optuna is not taken: its release wants an Optuna below 3, which breaks with SQLAlchemy 2.
"""

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from tinygpt.errors import UsageError, UserError, one_line
from tinygpt.sweep import DIVERGED, JOURNAL

# What may be another when a search goes on; its trials do not have it among their words.
OWN = ("sweep.n_trials=", "sweep.n_jobs=", "sweep.seed=", "run_dir=")


class OptunaSweeper(Sweeper):
    """Draws trials by Optuna, n_jobs at a time, and hands them to Hydra's launcher.

    Args:
        n_trials: finished ones, pruned ones and those that failed among them, after which the sweep is over.
        n_jobs: trials that are drawn together; how many run at once is the launcher's to say.
        seed: of the sampler.
        metric: of a trial's summary.json, that is to be low.
        space: what is searched: by its key, a sweep in Hydra's own words, as `interval(0.01, 0.1)`. The command line's
            sweeps are searched too, and a value that it sets is searched no more.
    """

    def __init__(self, n_trials: int, n_jobs: int, seed: int, metric: str, space: DictConfig | None = None) -> None:
        self.n_trials = n_trials
        self.n_jobs = n_jobs
        self.seed = seed
        self.metric = metric
        self.space: dict[str, str] = {str(key): str(value) for key, value in (space or {}).items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.directory = Path(config.hydra.sweep.dir)
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from tinygpt.files import alone
        from tinygpt.sweep.study import STARTUP, Search

        # Not in the constructor: Hydra words in its own way what is raised there.
        for name, value, least in (("n_trials", self.n_trials, 1), ("n_jobs", self.n_jobs, 1), ("seed", self.seed, 0)):
            if not isinstance(value, int) or value < least:
                raise UsageError(f"sweep.{name} must be a number of at least {least}, got {value}")
        parser = OverridesParser.create()
        given = parser.parse_overrides(arguments)
        keys = {override.key_or_group for override in given}
        searched = [override for override in given if override.is_sweep_override()]
        searched += parser.parse_overrides([f"{key}={v}" for key, v in self.space.items() if key not in keys])
        if not searched:
            raise UsageError("there is nothing to search; give a key several values, as optimizer.lr=0.01,0.03")
        fixed = [str(override.input_line) for override in given if not override.is_sweep_override()]
        fixed = [word for word in fixed if not word.startswith(OWN)]
        space = {override.get_key_element(): _distribution(override) for override in searched}
        here = f"hydra.sweep.dir={json.dumps(str(self.directory))}"  # quoted, as Hydra reads it
        with alone(self.directory):
            search = Search(self.directory, space, fixed, self.metric, self.seed)
            if before := len(search.finished()):
                print(f"{self.directory} has {before} of {self.n_trials} trials")
            while (left := self.n_trials - len(search.finished())) > 0:
                requests = search.ask(min(left, self.n_jobs))
                words = [
                    [*fixed, *(f"{key}={_word(value)}" for key, value in request.settings.items())]
                    for request in requests
                ]
                where = [[here, f"hydra.sweep.subdir={request.number}"] for request in requests]
                places = [[*line, *place] for line, place in zip(words, where, strict=True)]
                jobs = self.launcher.launch(places, initial_job_idx=requests[0].number)
                failed = [job.return_value == DIVERGED for job in jobs]  # raises what was raised there
                for request, has_failed in zip(requests, failed, strict=True):
                    # One that was refused may have another run's summary in its directory.
                    value = DIVERGED if has_failed else self._reached(self.directory / str(request.number))
                    trial = search.tell(request.number, value)
                    best = search.study.best_trial
                    told = "failed" if trial.value is None or trial.value >= DIVERGED else f"{trial.value:.4f}"
                    told = f"trial {trial.number}: {'pruned at ' if trial.state.name == 'PRUNED' else ''}{told}"
                    done = len(search.finished())
                    if best.value is not None and best.value < DIVERGED:
                        told += f"; best of {done}: trial {best.number}, {best.value:.4f}"
                    print(told, flush=True)
                done = len(search.finished())
                if done >= min(STARTUP, self.n_trials) and not any(self.directory.glob("*/config.yaml")):
                    (self.directory / JOURNAL).unlink()
                    raise UserError(f"none of {done} trials could begin, see above; the same command begins anew")

    def _reached(self, run_dir: Path) -> float:
        try:
            value = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return DIVERGED
        reached = value[self.metric] if value["status"] == "completed" else None
        return reached if reached is not None and isfinite(reached) else DIVERGED


def _distribution(override: Override) -> Any:
    """What Optuna draws for a sweep in Hydra's words.

    Raises:
        UsageError: it draws no such thing.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            assert value.start is not None
            assert value.end is not None
            if isinstance(value.start, int) and isinstance(value.end, int):
                return IntDistribution(value.start, value.end, log="log" in value.tags)
            return FloatDistribution(value.start, value.end, log="log" in value.tags)
        if isinstance(value, RangeSweep) and isinstance(value.start, int) and isinstance(value.step, int):
            assert value.stop is not None
            last = value.start + (int(value.stop) - 1 - value.start) // value.step * value.step
            return IntDistribution(value.start, last, step=value.step, log="log" in value.tags)
        if isinstance(value, ChoiceSweep | RangeSweep):
            return CategoricalDistribution([str(v) for v in override.sweep_iterator(transformer=Transformer.encode)])
    except ValueError as error:
        raise UsageError(f"{override.input_line}: {one_line(error)}") from error
    raise UsageError(f"{override.input_line} cannot be searched; a choice(...), a range(...) or an interval(...) can")


def _word(value: Any) -> str:
    """As Hydra reads it."""
    return value if isinstance(value, str) else repr(value)


class SweepReport(Callback):
    """Writes sweep.html at a sweep's end."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's
        from tinygpt.report.sweep import build

        try:
            print(build(Path(config.hydra.sweep.dir)))
        except Exception as error:  # of which Hydra would say nothing
            print(f"train.py: the sweep's report could not be written: {one_line(error)}", file=sys.stderr)
