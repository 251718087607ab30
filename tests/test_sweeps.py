"""`python train.py -m`: grids and searches, as a user starts, kills and goes on with them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import optuna
import pytest
import yaml
from omegaconf import OmegaConf
from optuna.distributions import FloatDistribution

import train
from tests.conftest import TINY
from tests.test_tracking import wandb_records
from tinygpt.report.sweep import build
from tinygpt.sweep.study import STARTUP, STEPS, RunningTrial, Search, load

ROOT = Path(__file__).parents[1]
SEARCH = [*(word for word in TINY if not word.startswith("model.n_embd")), "-m", "sweep=optuna", "run_dir=sweep"]
SPACE = ["model.n_embd=choice(8,16)", "optimizer.lr=interval(0.001,0.1)", "optimizer.weight_decay=0.1"]
SPACE += ["model.dropout=0.0", "model.n_layer=1"]


def clean() -> dict[str, str]:
    """The environment, without what importing train.py has set in it."""
    return {name: value for name, value in os.environ.items() if name not in ("HYDRA_FULL_ERROR", "TINYGPT_TRACEBACKS")}


def type_(*words: str, **environment: str) -> subprocess.CompletedProcess:
    """train.py in a process of its own, for the output of its trials' processes."""
    command = [sys.executable, ROOT / "train.py", *words]
    return subprocess.run(command, capture_output=True, text=True, env=clean() | environment)


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Until a file of a run is there; a process that has ended will write none."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.05)


def summary(run: str) -> dict:
    return json.loads(Path(run, "summary.json").read_text())


def study() -> optuna.Study:
    return load(Path("sweep"))


@pytest.mark.slow
def test_a_grid_goes_on_where_it_was_killed(book):
    words = [*TINY, "-m", "seed=1,2", "run_dir=sweep"]
    process = subprocess.Popen([sys.executable, ROOT / "train.py", *words], stdout=subprocess.PIPE, env=clean())
    wait_for(Path("sweep/1/config.yaml"), process)
    process.kill()
    process.communicate()  # to the end of its last trial's output: that has stopped too
    first = Path("sweep/0/checkpoints/last.ckpt").stat().st_mtime
    result = type_(*words[:-1], "run_dir=./sweep")
    assert (result.returncode, result.stderr) == (0, "")
    assert summary("sweep/1")["status"] == "completed"
    assert summary("sweep/1")["step"] == 6
    assert Path("sweep/0/checkpoints/last.ckpt").stat().st_mtime == first
    assert "sweep/sweep.html" in result.stdout


def test_a_sweep_that_is_told_to_stop_saves_its_trial_and_stops(book):
    words = [*TINY, "-m", "seed=1,2", "run_dir=sweep", "trainer.max_steps=100000", "eval_every=100000"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", *words], stderr=subprocess.PIPE, text=True, env=clean()
    )
    wait_for(Path("sweep/0/summary.json"), process)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "to go on from it: python train.py resume=sweep/0" in err
    seen = "python -m tinygpt.report.sweep sweep"
    assert err.endswith(f"train.py: the sweep was stopped; the same command goes on, {seen} shows it so far\n")
    assert summary("sweep/0")["status"] == "interrupted"
    assert [path.name for path in Path("sweep").iterdir() if path.is_dir()] == ["0"]


@pytest.mark.slow
def test_a_search_trains_reports_and_goes_on_by_the_same_command(book):
    words = [*SEARCH, *SPACE, "sweep.n_trials=2"]
    result = type_(*words)
    assert (result.returncode, result.stderr) == (0, "")
    reached = [summary(f"sweep/{i}")["best_val_bits_per_byte"] for i in range(2)]
    assert [trial.value for trial in study().trials] == pytest.approx(reached)
    assert f"best of 2: trial {reached.index(min(reached))}, {min(reached):.4f}" in result.stdout
    for i, trial in enumerate(study().trials):
        cfg = yaml.safe_load(Path(f"sweep/{i}/config.yaml").read_text())
        assert trial.params == {"model.n_embd": str(cfg["model"]["n_embd"]), "optimizer.lr": cfg["optimizer"]["lr"]}
        assert "sweep" not in cfg

    result = type_(*words)
    assert (result.returncode, len(study().trials)) == (0, 2)  # nothing is left to do
    result = type_(*words, "sweep.n_trials=3")
    assert result.returncode == 0
    assert len(study().trials) == 3
    assert [summary(f"sweep/{i}")["best_val_bits_per_byte"] for i in range(2)] == reached
    result = type_(*words, "model.n_head=1")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "another sweep, whose fixed has nothing instead of ['model.n_head=1']; name" in result.stderr


@pytest.mark.slow
def test_a_trial_that_fails_counts_as_bad_and_the_search_goes_on(book):
    words = [*SEARCH, "model.n_head=choice(2,5)", "model.n_embd=16", *SPACE[1:], "sweep.n_trials=4", "sweep.seed=2"]
    result = type_(*words)
    heads = [trial.params["model.n_head"] for trial in study().trials]
    assert {"2", "5"} == set(heads)
    assert [trial.value == 1e3 for trial in study().trials] == [head == "5" for head in heads]
    assert result.returncode == 2
    assert "n_embd=16, n_head=5" in result.stderr
    assert "failed; best of" in result.stdout
    page = Path("sweep/sweep.html").read_text()
    assert f"{heads.count('2')} of 4 trials have a result, 0 were pruned" in page
    failed = ", ".join(str(i) for i, head in enumerate(heads) if head == "5")
    assert f"Without a record, for they failed before the first step, or begin just now: {failed}." in page


def test_a_trial_that_is_worse_than_the_others_is_pruned(book, capsys: pytest.CaptureFixture):
    search = Search(
        Path("sweep"), {"optimizer.lr": FloatDistribution(0.001, 0.1)}, [], "best_val_bits_per_byte", seed=1
    )
    for request in search.ask(STARTUP):
        trial = RunningTrial(Path("sweep") / str(request.number))
        assert not any(trial.report(step / STEPS, 0.1) for step in range(STEPS))
        search.tell(request.number, 0.1)
    (request,) = search.ask(1)
    with hydra.initialize_config_dir(str(train.CONF), version_base=None):
        cfg = hydra.compose("train", [*TINY, "sweep=optuna"])
    cfg.run_dir = f"sweep/{request.number}"
    assert train.attempt(cfg, TINY, is_trial=True)[1] == 0
    assert "stopped early, after step 4/6: pruned, for most trials were better" in capsys.readouterr().out
    assert study().trials[-1].state == optuna.trial.TrialState.PRUNED
    assert "0 of 1 trials have a result, 1 were pruned" in build(Path("sweep")).read_text()


@pytest.mark.slow
def test_the_trials_of_a_sweep_are_a_group_of_wandb(book):
    assert type_(*TINY, "-m", "seed=1,2", "logger=wandb", "run_dir=sweep", WANDB_MODE="offline").returncode == 0
    for trial in ("0", "1"):
        groups = {r.run.run_group for r in wandb_records(Path("sweep", trial, "wandb")) if r.HasField("run")}
        assert groups == {"sweep"}


def test_a_trial_that_was_refused_has_not_reached_what_another_run_there_has(command, monkeypatch: pytest.MonkeyPatch):
    Path("sweep/0").mkdir(parents=True)
    Path("sweep/0/config.yaml").write_text("seed: 1\n")
    Path("sweep/0/summary.json").write_text('{"status": "completed", "best_val_bits_per_byte": 0.1}')
    monkeypatch.setattr(train, "isolated", lambda *_: 2)
    assert command(*SEARCH, *SPACE, "sweep.n_trials=1")[0] == 2
    assert [trial.value for trial in study().trials] == [train.DIVERGED]


@pytest.mark.slow
def test_a_search_of_which_no_trial_could_begin_is_not_kept(book):
    words = [*SEARCH, *SPACE, "sweep.n_trials=2"]
    book.rename("elsewhere.txt")
    result = type_(*words)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "train.py: none of 2 trials could begin, see above; the same command begins anew"
    )
    Path("elsewhere.txt").rename(book)
    assert type_(*words).returncode == 0
    assert [trial.value for trial in study().trials] == [
        summary(f"sweep/{i}")["best_val_bits_per_byte"] for i in (0, 1)
    ]


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_with_the_trial_that_it_was_in(book):
    words = [*SEARCH, *SPACE, "sweep.n_trials=2", "trainer.max_steps=300", "eval_every=20"]
    process = subprocess.Popen([sys.executable, ROOT / "train.py", *words], stdout=subprocess.PIPE, env=clean())
    wait_for(Path("sweep/0/checkpoints/last.ckpt"), process)
    process.kill()
    # At once: the trial may still be saving; with another end, and the same words in another order.
    result = type_(*words[1:], words[0], "sweep.n_trials=1")
    process.communicate()
    assert (result.returncode, result.stderr) == (0, "")
    assert "going on after step" in result.stdout
    assert summary("sweep/0")["step"] == 300
    assert [trial.value for trial in study().trials] == [summary("sweep/0")["best_val_bits_per_byte"]]

    result = type_("resume=sweep/0", "trainer.max_steps=310")  # by hand it is a run like any other
    assert result.returncode == 0
    assert len(study().trials) == 1


@pytest.mark.slow
def test_a_search_whose_trial_is_killed_goes_on(book):
    words = [*SEARCH, *SPACE, "sweep.n_trials=2", "trainer.max_steps=100000", "trainer.max_time=00:00:00:03"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", *words], stderr=subprocess.PIPE, text=True, env=clean()
    )
    wait_for(Path("sweep/0/summary.json"), process)
    children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", train.TRIAL[2:]], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "the trial sweep/0 was killed by SIGKILL; it counts as diverged" in err
    assert [trial.value == 1e3 for trial in study().trials] == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep.metric=accuracy"], "sweep.metric must be one of best_val_bits_per_byte, best_val_loss, "),
        (["dry_run=True"], "dry_run=true does not go with -m"),
        (["sweep.n_trials=0"], "train.py: sweep.n_trials must be a number of at least 1, got 0\n"),
        (["sweep.n_jobs=many"], "train.py: sweep.n_jobs must be a number of at least 1, got many\n"),
        (["sweep.seed=-1"], "train.py: sweep.seed must be a number of at least 0, got -1\n"),
        (
            ["sweep.space.optimizer.lr=1"],
            ": sweep.space.optimizer.lr is not what is set for a search; a key is,",
        ),
        (
            ["+sweep.space.model.n_layr=range(2,4)"],
            ": sweep.space.model.n_layr is not what is set for a search;",
        ),
        (
            ['sweep.space={seed: "1,2"}'],
            ": sweep.space is not what is set for a search; a key is, as optimizer.",
        ),
        (["+minutes=1"], "train.py: minutes= does not go with sweep=, which searches what minutes= chooses"),
        (
            ["optimizer.lr=intervall(1,3)"],
            "'optimizer.lr=intervall(1,3)' cannot be read; did you mean optimizer.lr=",
        ),
        (["sweep=grid"], "there is no sweep=grid; sweep is one of: optuna"),
        (["sweep.ntrials=3"], "there is no key sweep.ntrials; did you mean n_trials?"),
        (["optimizer.lr=interval(3,1)"], "optimizer.lr=interval(3,1): "),
        (["optimizer.lr=tag(log,interval(0,1))"], "optimizer.lr=tag(log,interval(0,1)): "),
        (
            ["optimizer.lr=glob(*)"],
            "optimizer.lr=glob(*) cannot be searched; a choice(...), a range(...) or an",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_in_a_search_is_one_line(command, words: list[str], message: str):
    status, _, err = command(*SEARCH, *words)
    assert (status, err.count("\n")) == (2, 1), err
    assert message in err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "ray", "submitit_local"])
def test_trials_run_at_once_by_hydras_launchers(book, launcher: str):
    at_once = ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    words = [*SEARCH, *SPACE, f"hydra/launcher={launcher}", *at_once, "sweep.n_trials=2", "sweep.n_jobs=2"]
    assert type_(*words, PYTHONPATH=str(ROOT)).returncode == 0
    reached = [summary(f"sweep/{i}")["best_val_bits_per_byte"] for i in range(2)]
    assert [trial.value for trial in study().trials] == pytest.approx(reached)


def test_a_search_without_m_is_a_mistake(command):
    words = [word for word in SEARCH if word != "-m"]
    assert command(*words)[::2] == (2, "train.py: sweep= says what -m searches; add -m, or leave it out\n")


def test_the_sweep_file_of_wandb_composes():
    sweep = yaml.safe_load((ROOT / "conf/wandb_sweep.yaml").read_text())
    chosen = {
        key: (kind["values"][0] if "values" in kind else kind["min"]) for key, kind in sweep["parameters"].items()
    }
    arguments = {
        "${env}": [],
        "${program}": [sweep["program"]],
        "${args_no_hyphens}": [f"{key}={value}" for key, value in chosen.items()],
    }
    words = [word for part in sweep["command"] for word in arguments.get(part, [part])]
    assert words[:2] == ["python", "train.py"]
    with hydra.initialize_config_dir(str(train.CONF), version_base=None):
        cfg = hydra.compose("train", words[2:])
    assert {key: OmegaConf.select(cfg, key) for key in chosen} == chosen
    assert "wandb" in cfg.logger


def test_the_best_command_that_a_report_shows_composes(book):
    assert type_(*SEARCH, *SPACE, "sweep.n_trials=1").returncode == 0
    (best,) = re.findall(r"<pre>(python train.py .*?)</pre>", Path("sweep/sweep.html").read_text())
    words = shlex.split(best)[2:]
    with hydra.initialize_config_dir(str(train.CONF), version_base=None):
        cfg = hydra.compose("train", words)
    assert cfg.optimizer.lr == study().best_trial.params["optimizer.lr"]
    assert not cfg.run_dir.startswith("sweep")
