from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from tinygpt.errors import UsageError
from tinygpt.sweep.study import STARTUP, STEPS, WARMUP, RunningTrial, Search

SPACE = {"a": FloatDistribution(-1.0, 1.0), "b": IntDistribution(1, 4)}
SWEEP = Path("sweep")


def search(**changes) -> Search:
    return Search(SWEEP, **{"space": SPACE, "fixed": ["seed=1"], "metric": "best_val_loss", "seed": 1} | changes)


def value(settings: dict) -> float:
    return (settings["a"] - 0.3) ** 2 + settings["b"]


def test_a_search_comes_near_the_minimum():
    s = search()
    for _ in range(40):
        (request,) = s.ask(1)
        s.tell(request.number, value(request.settings))
    best = s.study.best_trial
    assert best.params["b"] == 1
    assert abs(best.params["a"] - 0.3) < 0.2
    assert len(s.finished()) == 40


def test_trials_that_were_not_finished_come_first_when_a_search_goes_on():
    first = search()
    done, killed = first.ask(2)
    first.tell(done.number, 1.0)
    again = search()  # as of another process
    requests = again.ask(2)
    assert requests[0] == killed
    assert requests[1].number == 2
    assert requests[1].settings not in (done.settings, killed.settings)  # nor does it draw the same again
    assert [trial.number for trial in again.finished()] == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed": ["seed=2"]},
        {"metric": "best_val_bits_per_byte"},
        {"space": {"a": SPACE["a"]}},
        {"space": SPACE | {"b": IntDistribution(1, 5)}},
    ],
)
def test_another_search_does_not_take_the_directory(changes: dict):
    search()
    (what,) = changes
    with pytest.raises(
        UsageError, match=f"run_dir=sweep holds another sweep, whose {what} has .* instead of .*; name an"
    ):
        search(**changes)


def test_a_trial_that_was_killed_while_it_was_drawn_is_given_up():
    s = search()
    s.study.ask({"a": SPACE["a"]})
    (request,) = search().ask(1)
    assert request.number == 1
    assert request.settings.keys() == SPACE.keys()
    assert s.study.trials[0].state == optuna.trial.TrialState.FAIL


def test_a_trial_below_the_median_is_pruned_and_counts_as_finished():
    s = search()
    for number in range(STARTUP):
        s.ask(1)
        watched = RunningTrial(SWEEP / str(number))
        assert not any(watched.report(step / STEPS, 1.0) for step in range(STEPS))
        s.tell(number, 1.0)
    s.ask(2)
    worse, better = RunningTrial(SWEEP / str(STARTUP)), RunningTrial(SWEEP / str(STARTUP + 1))
    pruned = [worse.report((step + 0.5) / STEPS, 2.0) for step in range(WARMUP + 1)]
    assert pruned == [False] * WARMUP + [True]
    assert not any(better.report(step / STEPS, 0.5) for step in range(STEPS))
    pruned = s.tell(STARTUP, 5.0)
    assert (pruned.state, pruned.value) == (optuna.trial.TrialState.PRUNED, 2.0)
    assert s.tell(STARTUP + 1, 0.5).state == optuna.trial.TrialState.COMPLETE
    assert len(s.finished()) == STARTUP + 2


def test_the_end_of_a_run_is_not_pruned():
    s = search()
    s.ask(1)
    assert not RunningTrial(SWEEP / "0").report(1.0, 9.0)
    assert s.study.trials[0].intermediate_values == {}
