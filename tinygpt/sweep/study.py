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
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tinygpt.errors import UsageError
from tinygpt.sweep import JOURNAL

NAME = "sweep"
LEVELS = 20  # parts of a run, after each of which trials can be compared
WARMUP = 4  # of them, in which none is pruned
STARTUP = 8  # trials at random, before TPE has anything to go by; none is pruned for want of so many others


class Request(NamedTuple):
    """A trial to run: its number, which is also its directory's name, and its settings."""

    number: int
    settings: dict[str, Any]


class Search:
    """A study by TPE, whose hopeless trials are pruned: those below the median of the others at the same part of a run.

    Args:
        directory: of the sweep; a study that is there already goes on.
        space: what is searched, by the key that is set.
        fixed: the words of the command line that all trials share.
        seed: of the sampler.

    Raises:
        UsageError: another study is there.

    Source: Bergstra et al., 2011, for TPE; Golovin et al., 2017, for the median.
    """

    def __init__(self, directory: Path, space: Mapping[str, BaseDistribution], fixed: Sequence[str], seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directory.mkdir(parents=True, exist_ok=True)
        self.space = dict(space)
        self.study = optuna.create_study(study_name=NAME, storage=_storage(directory), load_if_exists=True)
        asked = {"space": {key: repr(kind) for key, kind in sorted(space.items())}, "fixed": sorted(fixed)}
        known = {key: self.study.user_attrs.get(key, value) for key, value in asked.items()}
        if known != asked:
            raise UsageError(
                f"run_dir={directory} holds another sweep, of {' '.join(known['fixed']) or 'the defaults'} and"
                f" {', '.join(known['space'])}; name another directory"
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
    return JournalStorage(JournalFileBackend(str(directory / JOURNAL)))


class Watched:
    """A trial, as the run that it is sees it.

    Args:
        run_dir: its directory, below that of its study.
    """

    def __init__(self, run_dir: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP, n_min_trials=3)
        study = load(run_dir.parent, pruner=pruner)
        (trial_id,) = (trial._trial_id for trial in study.get_trials() if trial.number == int(run_dir.name))
        self.trial = Trial(study, trial_id)
        self._level = -1

    def hopeless(self, progress: float, value: float) -> bool:
        """Report what was reached at a share of the run, and whether that is hopeless; if it is, the trial is over."""
        level = int(LEVELS * progress)
        if level >= LEVELS or level == self._level:
            return False
        self._level = level
        self.trial.report(value, level)
        if not self.trial.should_prune():
            return False
        self.trial.study.tell(self.trial.number, state=TrialState.PRUNED)
        return True
