"""Train a language model: compose the configuration, run it, word the mistakes.

    python train.py --help

Hydra and OmegaConf appear here and in hydra_plugins/ alone; everything in tinygpt/ takes plain arguments. The run
itself is `tinygpt/training/run.py`, imported late: it brings torch and Lightning, which --help need not wait for.
"""

import json
import os
import re
import shlex
import sys
import time
import traceback
from difflib import get_close_matches
from errno import EDQUOT, ENOSPC
from math import isfinite
from pathlib import Path
from signal import SIGINT, Signals
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tinygpt.config import typed, unknown_key
from tinygpt.errors import UsageError, UserError, one_line
from tinygpt.files import alone
from tinygpt.sweep import DIVERGED
from tinygpt.sweep.isolation import isolated, line_from_parent

CONF = Path(__file__).resolve().parent / "conf"
TRIAL = "--trial"  # what a sweep calls this file with, for one of its runs
ENDING = 120  # seconds in which a run that was stopped has saved
FUNCTIONS = ("choice", "range", "interval", "tag", "sort", "shuffle", "glob")  # of Hydra's, for several values
NO_ROOM = 3  # the exit status of a trial for which the disk was too full: not its settings' fault

# What was asked for, also of the processes of a sweep's trials, which find the line below done already.
SHOW_TRACEBACKS = os.environ.setdefault("TINYGPT_TRACEBACKS", os.environ.get("HYDRA_FULL_ERROR", "0")) == "1"
os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra lets exceptions through, for `complain` to word


GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()} - {"hydra"}
STATUSES: list[int] = []  # the exit statuses of this command's runs


def explain(error: BaseException, overrides: list[str]) -> str:
    """A mistake that Hydra found, in one line: what is wrong, what is allowed, what to do."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"there is no {group}={choice}; {group} is one of: {', '.join(sorted(error.options))}"
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        how = f"quote the value twice: {typed(key, value)}" if equals else "a setting is KEY=VALUE"
        name, bracket, _ = value.partition("(")
        if bracket and name not in FUNCTIONS and (close := get_close_matches(name, FUNCTIONS, n=1, cutoff=0.8)):
            how = f"did you mean {key}={close[0]}(...)?"
        return f"{error.override!r} cannot be read; {how}"
    unknown_choice = re.search(r"Could not load '(\w+)/([^']+)'", str(error))
    if unknown_choice and unknown_choice[1] in GROUPS:  # one of a list
        group, choice = unknown_choice.groups()
        return f"there is no {group}={choice}; {group} is one of: {', '.join(sorted(choices_of(group)))}"
    emptied = [o for o in overrides if o.partition("=")[0] in GROUPS and o.partition("=")[2] in ("", "null")]
    if emptied and "Config group override" in str(error):
        group = emptied[0].partition("=")[0]
        return f"{emptied[0]} chooses nothing; {group} is one of: {', '.join(sorted(choices_of(group)))}"
    ambiguous = re.search(r"Ambiguous value for argument '([^=']+)=(.*)'", str(error))
    if ambiguous:
        key, values = ambiguous.groups()
        return f"{key}={values} are several values: a list is {shlex.quote(f'{key}=[{values}]')}, a sweep needs -m"
    unknown = re.search(r"Could not override '([^']+)'", str(error))
    if unknown:
        name, known = nearest(unknown[1], overrides)
        group = name.rpartition(".")[0]
        others = "" if known or group not in GROUPS else f"; {group} is one of: {', '.join(sorted(choices_of(group)))}"
        return unknown_key(name, known) + others
    return one_line(error)


def choices_of(group: str) -> list[str]:
    return [path.stem for path in (CONF / group).glob("*.yaml")]


def nearest(name: str, overrides: list[str]) -> tuple[str, list[str]]:
    """The first part of a key that does not exist, and the keys beside it under the choices on this command line."""
    choices = [o for o in overrides if "=" in o and (CONF / o.partition("=")[0].lstrip("+~")).is_dir()]
    run_dir = resumed_from(overrides)
    try:
        cfg = compose("config", [], run_dir) if run_dir else compose("train", choices)
    except HydraException:  # a sweep over choices: the keys of the default ones
        cfg = compose("train", [])
    while group := name.rpartition(".")[0]:
        node = OmegaConf.select(cfg, group, default=...)
        if isinstance(node, DictConfig):
            return name, sorted({*map(str, node)} - {"_target_"})
        if node is not ... or group in GROUPS:
            return name, []
        name = group
    return name, sorted({*map(str, cfg), *GROUPS})


def compose(name: str, overrides: list[str], directory: Path = CONF) -> DictConfig:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(directory.resolve()), version_base=None):
        return hydra.compose(name, overrides)


def values_of(key: str, words: list[str]) -> list[Any]:
    """What the words of a command line give a key, in their order."""
    given = [word for word in words if word.lstrip("+").startswith(f"{key}=")]
    overrides = OverridesParser.create().parse_overrides(given)
    return [override.value() for override in overrides]


def resumed_from(words: list[str]) -> Path | None:
    """The directory of the run that `resume=RUN_DIR` goes on with; None: no word says so.

    Raises:
        UsageError: there is no such run, or another word asks for what a run that has begun cannot have.
    """
    named = [value for value in values_of("resume", words) if value is not None]
    if not named:
        return None
    run_dir = Path(str(named[-1]))
    if not (run_dir / "config.yaml").exists():
        raise UsageError(f"resume={run_dir} names no run's directory: there is no {run_dir / 'config.yaml'}")
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if word.startswith("-"):
            raise UsageError(f"{word} does not go with resume=: one run goes on, under its own configuration")
        if key in ("run_dir", "init_from"):
            raise UsageError(f"{key}= does not go with resume=: a run goes on where it was, with what it had learned")
        if key == "minutes":
            raise UsageError("minutes= does not go with resume=: it chooses a model; trainer.max_time= says how long")
        if key in GROUPS:
            raise UsageError(f"{word} cannot be chosen for a run that has begun; its keys can be set: {key}.KEY=VALUE")
    return run_dir


def refuse_sweep(words: list[str]) -> None:
    """Raise UsageError where a command line asks for what no sweep does."""
    if any(values_of("dry_run", words)):
        raise UsageError("dry_run=true does not go with -m: it tells what one run would cost")
    if any(values_of("sweep", words)) and any(values_of("minutes", words)):
        raise UsageError("minutes= does not go with sweep=, which searches what minutes= chooses; leave out one")
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        if key == "sweep.space" or key.startswith("sweep.space."):
            raise UsageError(f"{key} is not what is set for a search; a key is, as optimizer.lr=interval(0.001,0.1)")


@hydra.main(config_path=str(CONF), config_name="train", version_base=None)
def job(cfg: DictConfig) -> float:
    """What Hydra calls, once or for each trial of a sweep."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        result, status = trial(cfg)
    else:
        result, status = attempt(cfg, sys.argv[1:])
    STATUSES.append(status)
    return result


def trial(cfg: DictConfig) -> tuple[float, int]:
    """A run of a sweep, in a process of its own: what it reached, and its exit status."""
    hydra_cfg = HydraConfig.get()
    cfg.run_dir = os.path.relpath(hydra_cfg.runtime.output_dir)
    words = list(hydra_cfg.overrides.task)
    print(f"\n{cfg.run_dir}: {shlex.join(words)}", flush=True)
    asked = {"cfg": OmegaConf.to_container(cfg, resolve=True), "words": words, "sweep_dir": hydra_cfg.sweep.dir}
    try:
        status = isolated([sys.executable, str(CONF.parent / "train.py"), TRIAL], json.dumps(asked))
    except SystemExit:
        seen = f"python -m tinygpt.report.sweep {shlex.quote(hydra_cfg.sweep.dir)}"
        print(
            f"train.py: the sweep was stopped; {goes_on(hydra_cfg.sweep.dir)}, {seen} shows it so far", file=sys.stderr
        )
        raise
    if status == NO_ROOM:
        print(
            f"train.py: the sweep ends, for the disk is full; make room, and {goes_on(hydra_cfg.sweep.dir)}",
            file=sys.stderr,
        )
        raise SystemExit(1)  # after an Exception Hydra would begin the next trial
    if status < 0:
        number, status = Signals(-status).name, 1
        print(f"train.py: the trial {cfg.run_dir} was killed by {number}; it counts as diverged", file=sys.stderr)
    summary = Path(cfg.run_dir) / "summary.json"
    reached = json.loads(summary.read_text())["best_val_bits_per_byte"] if status == 0 and summary.exists() else None
    return DIVERGED if reached is None else reached, status


def goes_on(sweep_dir: str) -> str:
    """Which command goes on with a sweep."""
    there = "" if values_of("run_dir", sys.argv[1:]) else f" with {typed('run_dir', sweep_dir)}"
    return f"the same command{there} goes on"


def attempt_trial(cfg: dict[str, Any], words: list[str], sweep_dir: str) -> int:
    """The run that a sweep asks this process for; one that was begun before goes on, one that is over stays so."""
    sys.argv[1:] = words  # which mistakes are explained by
    os.environ.setdefault("WANDB_RUN_GROUP", Path(sweep_dir).resolve().name)
    run_dir = Path(cfg["run_dir"])
    config, facts, summary = (run_dir / name for name in ("config.yaml", "facts.json", "summary.json"))
    begun_by = shlex.split(json.loads(facts.read_text())["commands"][0])[2:] if facts.exists() else words
    same = asked_for(begun_by) == asked_for(words)
    node = OmegaConf.create(cfg)
    if config.exists():
        with alone(run_dir, ENDING):  # the process that a sweep before this one left may be saving still
            pass
    if config.exists() and same:
        if summary.exists() and json.loads(summary.read_text())["status"] == "completed":
            return 0
        node = compose("config", [typed("resume", str(run_dir))], run_dir)
        node.run_dir = str(run_dir)
    return attempt(node, words, is_trial=True)[1]  # which tells where the directory is another run's


def asked_for(words: list[str]) -> list[str]:
    """What decides a trial, whatever the words' order and its sweep's directory."""
    return sorted(word for word in words if not word.startswith("run_dir="))


def attempt(cfg: DictConfig, words: list[str], *, is_trial: bool = False) -> tuple[float, int]:
    """One run's result and exit status; where it fails the mistake is told and the result is DIVERGED."""
    begun = time.monotonic()  # before what is imported late
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            raise UsageError(f"{missing[0]} must be given: {missing[0]}=...")
        plain = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(plain, dict)
        if plain.pop("sweep", None) and not is_trial:
            raise UsageError("sweep= says what -m searches; add -m, or leave it out")

        from tinygpt.training import run

        result = run.run({str(key): value for key, value in plain.items()}, words, begun, is_trial=is_trial)
        return result if isfinite(result) else DIVERGED, 0
    except Exception as error:
        status = complain(error)
        return DIVERGED, NO_ROOM if is_trial and full_disk(error) else status
    finally:
        run_dir = Path(cfg.run_dir)
        # Hydra has made it before anything was checked. A sweep's report tells of a trial by its directory.
        if not is_trial and run_dir.is_dir() and not any(run_dir.iterdir()):
            run_dir.rmdir()


def full_disk(error: BaseException | None) -> OSError | None:
    """The error that says that a disk, or what a user may have of it, is full: this one, or one that led to it."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT)):
        error = error.__cause__ or error.__context__
    return error


def complain(error: BaseException, status: int = 1) -> int:
    """Say in one line on stderr what went wrong, and return the exit status; HYDRA_FULL_ERROR=1 shows where it did."""
    if isinstance(error, UsageError):
        message, status = str(error), 2
    elif isinstance(error, UserError):
        message, status = str(error), 1
    elif full := full_disk(error):
        message = f"the disk is full{f', {full.filename} could not be written' if full.filename else ''}; make room"
    elif isinstance(error, OSError) and error.filename:
        message = f"{error.filename} cannot be used: {error.strerror} (HYDRA_FULL_ERROR=1 shows where)"
    elif isinstance(error, HydraException | OmegaConfBaseException) or status == 2:
        message, status = explain(error, sys.argv[1:]), 2
    else:
        message = f"{type(error).__name__}: {one_line(error)} (HYDRA_FULL_ERROR=1 shows where)"
    if SHOW_TRACEBACKS:
        traceback.print_exception(error)
    print(f"train.py: {message}", file=sys.stderr)
    return status


def main() -> int:
    """Run the command line; returns the exit status."""
    STATUSES.clear()
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))  # argparse wants them first
    try:
        if sys.argv[1:] == [TRIAL]:
            return attempt_trial(**json.loads(line_from_parent()))
        run_dir = None if {"--help", "-h"} & set(sys.argv) else resumed_from(sys.argv[1:])
        if {"-m", "--multirun"} & set(sys.argv):
            refuse_sweep(sys.argv[1:])
        if run_dir is None:
            job()
        else:
            cfg = compose("config", sys.argv[1:], run_dir)
            cfg.run_dir = str(run_dir)
            STATUSES.append(attempt(cfg, sys.argv[1:])[1])
    except Exception as error:  # from before any run: Hydra could not compose what the command line says
        return complain(error, status=2)
    except KeyboardInterrupt:
        print("train.py: stopped at once; what came after the last checkpoint is lost", file=sys.stderr)
        return 128 + SIGINT
    return max(STATUSES, default=0)


if __name__ == "__main__":
    sys.exit(main())
