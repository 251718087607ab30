"""A search for the best settings: Optuna's study, kept in a file beside its trials.

The file is Optuna's journal, to which every event is added at once: a search whose process was killed has all of its
finished trials, and the values that the unfinished ones had reached.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from tinygpt.errors import UsageError
from tinygpt.sweep import JOURNAL, METRICS

NAME = "sweep"
STEPS = 20  # of Optuna's: parts of a run, after each of which trials can be compared
WARMUP = 4  # of them, in which none is pruned
STARTUP = 8  # trials at random, before TPE has anything to go by; none is pruned for want of so many others


class Request(NamedTuple):
    """A trial to run: its number, which is also its directory's name, and its settings."""

    number: int
    settings: dict[str, Any]


class Search:
    """A study by TPE, whose hopeless trials are pruned: those worse than the others' median at the same part of a run.

    Args:
        directory: of the sweep; a study that is there already goes on.
        space: what is searched, by the key that is set.
        fixed: the words of the command line that all trials share.
        metric: what is minimised, of METRICS.
        seed: of the sampler.

    Raises:
        UsageError: there is no such metric, or another study is there.

    Source: Bergstra et al., 2011, for TPE; Golovin et al., 2017, for the median.
    """

    def __init__(
        self,
        directory: Path,
        space: Mapping[str, BaseDistribution],
        fixed: Sequence[str],
        metric: str,
        seed: int,
    ) -> None:
        if metric not in METRICS:
            raise UsageError(f"sweep.metric must be one of {', '.join(METRICS)}, got {metric!r}")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directory.mkdir(parents=True, exist_ok=True)
        self.space = dict(space)
        self.study = optuna.create_study(study_name=NAME, storage=_storage(directory), load_if_exists=True)
        asked = {
            "space": sorted(f"{key}={kind!r}" for key, kind in space.items()),
            "fixed": sorted(fixed),
            "metric": metric,
        }
        known = {key: self.study.user_attrs.get(key, value) for key, value in asked.items()}
        for what in asked:
            if known[what] != asked[what]:
                was, now = known[what], asked[what]
                if isinstance(now, list):
                    was, now = ([word for word in a if word not in b] or "nothing" for a, b in ((was, now), (now, was)))
                raise UsageError(
                    f"run_dir={directory} holds another sweep, whose {what} has {was} instead of {now}; name another"
                    " directory"
                )
        for key, value in asked.items():
            self.study.set_user_attr(key, value)
        # What was drawn before is not drawn again.
        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=STARTUP, constant_liar=True, seed=seed + len(self.study.trials)
        )

    def ask(self, n: int) -> list[Request]:
        """The next trials: those that were begun and not finished, then new ones."""
        unfinished = self.study.get_trials(states=[TrialState.RUNNING])
        for trial in unfinished:
            if trial.params.keys() != self.space.keys():  # killed while they were drawn
                self.study.tell(trial.number, state=TrialState.FAIL)
        unfinished = [trial for trial in unfinished if trial.params.keys() == self.space.keys()]
        requests = [Request(trial.number, trial.params) for trial in unfinished[:n]]
        while len(requests) < n:
            trial = self.study.ask(self.space)
            requests.append(Request(trial.number, trial.params))
        return requests

    def tell(self, number: int, value: float) -> FrozenTrial:
        """What a trial has reached, unless it was pruned."""
        return self.study.tell(number, value, skip_if_finished=True)

    def finished(self) -> list[FrozenTrial]:
        return self.study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])


def load(directory: Path, **settings: Any) -> optuna.Study:
    """The study of a directory; the settings are those of `optuna.load_study`."""
    return optuna.load_study(study_name=NAME, storage=_storage(directory), **settings)


def _storage(directory: Path) -> JournalStorage:
    # Optuna's usual lock, a link to a relative path, would never be released of a process that was killed with it.
    path = str(directory.resolve() / JOURNAL)
    return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))


class RunningTrial:
    """A trial, as the run that it is sees it.

    Args:
        run_dir: its directory, below that of its study.

    Attributes:
        metric: of a validation, what is reported.
    """

    def __init__(self, run_dir: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP, n_min_trials=3)
        study = load(run_dir.parent, pruner=pruner)
        (trial_id,) = (trial._trial_id for trial in study.get_trials() if trial.number == int(run_dir.name))
        self.trial = Trial(study, trial_id)
        self.metric = str(study.user_attrs["metric"]).removeprefix("best_")
        self._step = -1

    def report(self, progress: float, value: float) -> bool:
        """Report what was reached at a share of the run; returns whether the trial was pruned, and is over."""
        step = int(STEPS * progress)
        if step >= STEPS or step == self._step:
            return False
        self._step = step
        self.trial.report(value, step)
        if not self.trial.should_prune():
            return False
        self.trial.study.tell(self.trial.number, state=TrialState.PRUNED)
        return True
