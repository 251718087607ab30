"""Train a language model: compose the configuration, build what it names, fit, report.

    python train.py --help

Hydra and OmegaConf appear here alone; everything in tinygpt/ takes plain arguments. What is slow to import is imported
where it is first needed, so that --help and mistakes are answered at once.
"""

import os
import re
import shlex
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tinygpt.config import Config, UsageError, build, check, construct, one_line, parts, target, unknown_key
from tinygpt.errors import UserError

if TYPE_CHECKING:
    from tinygpt.training.metrics import Metrics

CONF = Path(__file__).resolve().parent / "conf"
DIVERGED = 1e3  # bits per byte that a sweep is told of a run without a finite result: a sampler needs a number

SHOW_TRACEBACKS = os.environ.get("HYDRA_FULL_ERROR") == "1"
os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra lets exceptions through, for `complain` to word


@dataclass(kw_only=True)
class Settings:
    """The configuration's keys outside its groups."""

    seed: int
    run_dir: str
    eval_every: int
    log_every: int
    compile: bool
    dry_run: bool

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("eval_every", 1), ("log_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()}
REQUIRED = GROUPS - {"experiment", "debug"} | set(Settings.__annotations__)
FAILED: list[int] = []  # the exit statuses of this command's runs that failed


def run(cfg: Config) -> float:
    """Train as a configuration says, and report; returns the best validation bits per byte."""
    keys = {key: value for key, value in cfg.items() if key not in GROUPS}
    check("", Settings, keys)
    settings: Settings = construct("", Settings, keys)
    run_dir = Path(settings.run_dir)
    if (run_dir / "config.yaml").exists():
        raise UsageError(f"run_dir={run_dir} holds a run already; name another directory")

    import torch

    from tinygpt import files, hardware
    from tinygpt.data.corpus import texts
    from tinygpt.data.module import TextDataModule
    from tinygpt.data.token_file import encode
    from tinygpt.training.estimate import estimate
    from tinygpt.training.interrupt import Interrupted, StopOnSignal
    from tinygpt.training.metrics import Metrics
    from tinygpt.training.module import LanguageModel
    from tinygpt.training.progress import Progress, quiet
    from tinygpt.training.summary import Summary

    quiet()
    device = construct("trainer", hardware.device, {"name": cfg["trainer"]["accelerator"]})
    precision = construct("trainer", hardware.precision, {"name": cfg["trainer"]["precision"], "device": device})
    cfg["trainer"] |= {"accelerator": device, "precision": precision}
    for group, node in parts(cfg).items():
        check(group, target(node), node)
    max_steps, accumulate = cfg["trainer"]["max_steps"], cfg["trainer"]["accumulate_grad_batches"]
    if max_steps < 1:
        raise UsageError(f"trainer.max_steps must be at least 1, got {max_steps}")
    if cfg["trainer"]["devices"] != 1:
        raise UsageError(f"trainer.devices must be 1, a run uses one device so far, got {cfg['trainer']['devices']}")

    # What can be built without the corpus is, before that is read: a mistake shows at once.
    attention, schedule = build(cfg, "attention"), build(cfg, "schedule")
    callbacks = {name: build(cfg, name) for name in parts(cfg) if name.startswith("callbacks.")}
    with torch.device("meta"):  # without memory or arithmetic
        build(cfg, "optimizer", model=build(cfg, "model", vocab_size=1, attention=attention))

    corpus = build(cfg, "data")
    splits = corpus.splits()
    tokenizer = build(cfg, "tokenizer", documents=texts(splits.train))
    train, validation = (encode(documents, tokenizer, Path(corpus.cache_dir)) for documents in splits)
    torch.manual_seed(settings.seed)
    model = build(cfg, "model", vocab_size=tokenizer.vocab_size, attention=attention)
    data = TextDataModule(train, validation, corpus=corpus, block_size=model.block_size, seed=settings.seed)
    if settings.dry_run:
        run_facts = {"device": device, "precision": precision, "max_steps": max_steps, "accumulate": accumulate}
        print(estimate(model, tokenizer, data, **run_facts))
        return DIVERGED

    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what is left in fp32
    module = LanguageModel(
        model,
        tokenizer,
        optimizer=build(cfg, "optimizer", model=model),
        schedule=schedule,
        bytes_per_id=torch.from_numpy(validation.bytes_per_id(tokenizer.n_bytes)),
        compile=settings.compile,
    )
    n_targets = data.train_batches().n_targets
    metrics = Metrics(settings.log_every, corpus.batch_size * model.block_size * accumulate, n_targets)
    checkpoint = callbacks["callbacks.checkpoint"]
    facts = {"n_parameters": model.n_parameters(), "device": device, "precision": precision}
    summary = Summary(run_dir / "summary.json", metrics, checkpoint, facts)
    trainer = build(
        cfg,
        "trainer",
        logger=[build(cfg, name) for name in parts(cfg) if name.startswith("logger.")],
        callbacks=[metrics, Progress(metrics), StopOnSignal(), *callbacks.values(), summary],
        max_epochs=-1,
        val_check_interval=settings.eval_every * accumulate,  # Lightning counts batches here, not optimizer steps
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    frozen = cfg | {"model": cfg["model"] | {"vocab_size": tokenizer.vocab_size}}
    files.write_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(frozen)))
    files.write_text(run_dir / "tokenizer.json", tokenizer.to_json())
    print(
        f"{model.n_parameters():,} parameters, {tokenizer.vocab_size:,} tokens in the vocabulary,"
        f" {n_targets:,} to train on; {device}, {precision}; {run_dir}"
    )
    try:
        trainer.fit(module, datamodule=data)
    except (Interrupted, Exception) as error:
        if checkpoint.last_path.exists():
            print(f"\nthe last checkpoint is {checkpoint.last_path}, of step {checkpoint.saved_step}", file=sys.stderr)
        if isinstance(error, Interrupted):
            print(f"train.py: stopped by {error} after step {metrics.step}", file=sys.stderr)
            raise SystemExit(128 + error.signal) from error
        raise
    finally:
        for logger in trainer.loggers:
            if hasattr(logger.experiment, "finish"):  # else the next trial of a sweep goes on with this one's W&B run
                logger.experiment.finish()
    if metrics.best_val_bits_per_byte is None:
        raise UserError("no validation loss was a number; try a lower optimizer.lr")
    report(run_dir, metrics)
    return metrics.best_val_bits_per_byte


def report(run_dir: Path, metrics: "Metrics") -> None:
    """What a run reached, a sample of it, and how to get more."""
    import tinygpt

    print(
        f"\nbest validation loss {metrics.best_val_loss:.4f}, {metrics.best_val_bits_per_byte:.4f} bits per byte;"
        f" {metrics.train_seconds:,.0f} s of training, {metrics.tokens_seen / metrics.train_seconds:,.0f} tokens/s"
        f"\n\n{tinygpt.load(run_dir).generate(max_new_tokens=400)}"
        f"\n\nMore: python generate.py --checkpoint {shlex.quote(str(run_dir))} --num-samples 3"
    )


def explain(error: BaseException, overrides: list[str]) -> str:
    """A mistake that Hydra found, in one line: what is wrong, what is allowed, what to do."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"there is no {group}={choice}; {group} is one of: {', '.join(sorted(error.options))}"
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        items = value.strip("[]").split(",") if value.startswith("[") else [value]
        quoted = ",".join('"' + item.strip(" \"'").replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
        example = f"{key}=[{quoted}]" if value.startswith("[") else f"{key}={quoted}"
        how = f"quote the value twice: {shlex.quote(example)}" if equals else "a setting is KEY=VALUE"
        return f"{error.override!r} cannot be read; {how}"
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
        return unknown_key(unknown[1], keys_of(unknown[1].rpartition(".")[0], overrides))
    return one_line(error)


def choices_of(group: str) -> list[str]:
    return [path.stem for path in (CONF / group).glob("*.yaml")]


def keys_of(group: str, overrides: list[str]) -> list[str]:
    """The keys that a group has under the choices made on this command line."""
    choices = [o for o in overrides if "=" in o and (CONF / o.partition("=")[0].lstrip("+~")).is_dir()]
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        try:
            cfg = hydra.compose("train", choices)
        except HydraException:  # a sweep over choices: the keys of the default ones
            cfg = hydra.compose("train")
    node = OmegaConf.select(cfg, group) if group else cfg
    if not isinstance(node, DictConfig):
        return keys_of(group.rpartition(".")[0], overrides)
    return sorted({*map(str, node), *([] if group else GROUPS)} - {"_target_"})


@hydra.main(config_path=str(CONF), config_name="train", version_base=None)
def job(cfg: DictConfig) -> float:
    """What Hydra calls, once or for each trial of a sweep."""
    return attempt(cfg)


def attempt(cfg: DictConfig) -> float:
    """One run; where it fails the mistake is told and the result is DIVERGED, so that a sweep goes on."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        cfg.run_dir = os.path.relpath(HydraConfig.get().runtime.output_dir)
    try:
        missing = sorted(OmegaConf.missing_keys(cfg) | (REQUIRED - {str(key) for key in cfg}))
        if missing:
            raise UsageError(f"{missing[0]} must be given: {missing[0]}=...")
        plain = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(plain, dict)
        return run({str(key): value for key, value in plain.items()})
    except Exception as error:
        FAILED.append(complain(error))
        return DIVERGED
    finally:
        run_dir = Path(cfg.run_dir)
        if run_dir.is_dir() and not any(run_dir.iterdir()):  # Hydra has made it before anything was checked
            run_dir.rmdir()


def complain(error: BaseException, status: int = 1) -> int:
    """Say in one line on stderr what went wrong, and return the exit status; HYDRA_FULL_ERROR=1 shows where it did."""
    if isinstance(error, UsageError):
        message, status = str(error), 2
    elif isinstance(error, UserError):
        message = str(error)
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
    FAILED.clear()
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))  # argparse wants them first
    try:
        job()
    except Exception as error:  # from before any run: Hydra could not compose what the command line says
        return complain(error, status=2)
    except KeyboardInterrupt:
        return 130
    return max(FAILED, default=0)


if __name__ == "__main__":
    sys.exit(main())
