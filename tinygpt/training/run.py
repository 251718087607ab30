"""One run: build what a configuration names, fit, report."""

import shlex
import sys
from dataclasses import dataclass
from math import nan
from pathlib import Path

import torch
import yaml

from tinygpt import files, hardware
from tinygpt.attention import SelfAttention
from tinygpt.config import Config, UsageError, build, check, construct, parts, target
from tinygpt.data.corpus import texts
from tinygpt.data.encoding import encode
from tinygpt.data.module import TextDataModule
from tinygpt.errors import UserError
from tinygpt.generation.text import load
from tinygpt.training.estimate import estimate
from tinygpt.training.interrupt import Interrupted, StopOnSignal
from tinygpt.training.metrics import Metrics
from tinygpt.training.module import LanguageModel
from tinygpt.training.progress import Progress, quiet
from tinygpt.training.summary import Summary

PARTS = ("data", "tokenizer", "model", "attention", "optimizer", "schedule", "trainer", "callbacks", "logger")

TAKEN = "run_dir={} holds a run already; name another directory"


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
        if not self.run_dir or self.run_dir.startswith("~"):
            raise ValueError(f"run_dir must name a directory, with ~ written out, got {self.run_dir!r}")


def run(cfg: Config) -> float:
    """Train as a configuration says, and report.

    Returns:
        The best validation bits per byte; NaN where nothing was trained (dry_run).

    Raises:
        UsageError: the configuration asks for what does not exist or is not allowed.
        UserError: the corpus cannot be used, or training diverged.
        SystemExit: a signal stopped the run.
    """
    missing = [name for name in (*Settings.__annotations__, *PARTS) if cfg.get(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} must be given: {missing[0]}=...")
    keys = {key: value for key, value in cfg.items() if not isinstance(value, dict) and value is not None}
    check("", Settings, keys)
    settings: Settings = construct("", Settings, keys)
    run_dir = Path(settings.run_dir)
    if (run_dir / "config.yaml").exists():
        raise UsageError(TAKEN.format(run_dir))

    quiet()
    device = construct("trainer", hardware.device, {"name": cfg["trainer"]["accelerator"]})
    precision = construct("trainer", hardware.precision, {"name": cfg["trainer"]["precision"], "device": device})
    cfg["trainer"] |= {"accelerator": device, "precision": precision}
    for group, node in parts(cfg).items():
        check(group, target(node), node)
    max_steps, accumulate = cfg["trainer"]["max_steps"], cfg["trainer"]["accumulate_grad_batches"]
    for name, least in (("max_steps", 1), ("accumulate_grad_batches", 1), ("gradient_clip_val", 0)):
        if (cfg["trainer"].get(name) or 0) < least:
            raise UsageError(f"trainer.{name} must be at least {least}, got {cfg['trainer'].get(name)}")
    if cfg["trainer"]["devices"] != 1:
        raise UsageError(f"trainer.devices must be 1, a run uses one device so far, got {cfg['trainer']['devices']}")

    # What can be built without the corpus is, before that is read: a mistake shows at once.
    build(cfg, "tokenizer", documents=())
    attention, schedule = build(cfg, "attention"), build(cfg, "schedule")
    callbacks = {name: build(cfg, name) for name in parts(cfg) if name.startswith("callbacks.")}
    with torch.device("meta"):  # without memory or arithmetic
        model = build(cfg, "model", vocab_size=1, attention=attention)
        build(cfg, "optimizer", model=model)
    head_dim = next(m.head_dim for m in model.modules() if isinstance(m, SelfAttention))
    asked = {"dropout": model.config["dropout"], "random": model.random is not None, "head_dim": head_dim}
    construct("attention", attention.check, asked | {"device": device})

    corpus = build(cfg, "data")
    splits = corpus.splits()
    tokenizer = build(cfg, "tokenizer", documents=texts(splits.train))
    train, validation = (encode(documents, tokenizer, Path(corpus.cache_dir), corpus.num_proc) for documents in splits)
    torch.manual_seed(settings.seed)
    model = build(cfg, "model", vocab_size=tokenizer.vocab_size, attention=attention)
    data = TextDataModule(
        train,
        validation,
        corpus=corpus,
        block_size=model.block_size,
        seed=settings.seed,
        accumulate=accumulate,
    )
    if settings.dry_run:
        run_facts = {"device": device, "precision": precision, "max_steps": max_steps, "accumulate": accumulate}
        print(estimate(model, tokenizer, data, **run_facts))
        return nan

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
    n_targets = data.train_layout.n_targets
    metrics = Metrics(settings.log_every, n_targets)
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
    try:
        with (run_dir / "config.yaml").open("x", encoding="utf-8") as file:  # of two runs at once one gets the folder
            yaml.safe_dump(cfg | {"model": cfg["model"] | {"vocab_size": tokenizer.vocab_size}}, file, sort_keys=False)
    except FileExistsError as error:
        raise UsageError(TAKEN.format(run_dir)) from error
    files.write_text(run_dir / "tokenizer.json", tokenizer.to_json())
    print(
        f"{model.n_parameters():,} parameters, {tokenizer.vocab_size:,} tokens in the vocabulary; {device}, {precision}"
        f"\n{n_targets:,} tokens to train on, {data.val_layout.n_targets:,} to validate on; {run_dir}"
    )
    try:
        trainer.fit(module, datamodule=data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):  # the second one, in the middle of a step or of saving
            summary.write("interrupted")
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
    if metrics.step < max_steps:
        print(f"stopped early, after step {metrics.step} of {max_steps}: the validation loss no longer falls")
    report(run_dir, metrics)
    return metrics.best_val_bits_per_byte


def report(run_dir: Path, metrics: Metrics) -> None:
    """What a run reached, a sample of it, and how to get more."""
    print(
        f"\nbest validation loss {metrics.best_val_loss:.4f}, {metrics.best_val_bits_per_byte:.4f} bits per byte;"
        f" {metrics.train_seconds:,.0f} s of training, {metrics.tokens_seen / metrics.train_seconds:,.0f} tokens/s"
        f"\n\n{load(run_dir).generate(max_new_tokens=400)}"
        f"\n\nMore: python generate.py --checkpoint {shlex.quote(str(run_dir))} --num-samples 3"
    )
