"""One run: check and build what a configuration names."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import nan
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from tinygpt import checkpoint, files, hardware
from tinygpt.attention import SelfAttention
from tinygpt.config import Config, build, check, command_line, construct, parts, target, typed
from tinygpt.data.corpus import texts
from tinygpt.data.encoding import encode
from tinygpt.data.module import TextDataModule
from tinygpt.data.token_file import TokenFile
from tinygpt.errors import UsageError
from tinygpt.sweep import JOURNAL
from tinygpt.tokenizers import Tokenizer
from tinygpt.tokenizers.file import write_file
from tinygpt.training import dial, facts
from tinygpt.training.budget import UNLIMITED, Budget
from tinygpt.training.checkpointing import CheckpointFiles
from tinygpt.training.estimate import estimate, largest_batch
from tinygpt.training.fit import fit
from tinygpt.training.init_from import adopt
from tinygpt.training.interrupt import StopOnSignal
from tinygpt.training.metrics import Metrics
from tinygpt.training.module import LanguageModel
from tinygpt.training.progress import Progress, quiet
from tinygpt.training.report import Report
from tinygpt.training.resume import Earlier, differences, earlier
from tinygpt.training.settings import Settings, settings_of
from tinygpt.training.summary import Summary

PARTS = ("data", "tokenizer", "model", "attention", "optimizer", "schedule", "trainer", "callbacks")

MAX_STEPS = 1000  # where neither steps nor a time are given
TAKEN = "run_dir={} holds a run already; go on with it by {}, or name another directory"


class Text(NamedTuple):
    """What a run reads, as ids."""

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile


def run(cfg: Config, words: Sequence[str], begun: float, *, is_trial: bool = False) -> float:
    """Train as a configuration says, and report.

    Args:
        cfg: the configuration.
        words: of the command line, which `cfg` is made of.
        begun: when the run's minutes began, by `time.monotonic`.
        is_trial: a sweep runs it; where that is a search, it may prune it.

    Returns:
        The best validation bits per byte; NaN where nothing was trained (dry_run).

    Raises:
        UsageError: the configuration asks for what does not exist or is not allowed.
        UserError: the corpus cannot be used, or training diverged.
        SystemExit: a signal stopped the run.
    """
    before = None
    if cfg.get("resume") is not None:  # the file of another version says so before its keys are looked at
        before = earlier(Path(cfg["run_dir"]))
        cfg["model"].pop("vocab_size", None)
    required = [name for name in Settings.__annotations__ if name not in ("minutes", "resume", "init_from")]
    missing = [name for name in (*required, *PARTS) if cfg.get(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} must be given: {missing[0]}=...")
    settings = settings_of(cfg)
    run_dir = Path(settings.run_dir)
    given = [word.partition("=")[0].lstrip("+~") for word in words]
    if settings.minutes is not None:
        dial.refuse(given)
    if cfg["trainer"].get("max_steps") is None:
        cfg["trainer"]["max_steps"] = MAX_STEPS if cfg["trainer"].get("max_time") is None else UNLIMITED
    with ExitStack() as held:
        if before is not None:
            held.enter_context(files.alone(run_dir))
        elif (run_dir / "config.yaml").exists():
            raise UsageError(TAKEN.format(run_dir, typed("resume", str(run_dir))))
        source = None
        if settings.init_from is not None and not (before and before.step):
            cfg, source = adopt(cfg, given)
        return _run(cfg, before, source, held, begun, command_line(words), is_trial)


def _run(
    cfg: Config,
    before: Earlier | None,
    source: checkpoint.Contents | None,
    held: ExitStack,
    begun: float,
    command: str,
    is_trial: bool,
    text: Text | None = None,
) -> float:
    """`run`, given the run that it goes on with, the checkpoint that it starts from, and what is held until its end.

    Args:
        command: as it is typed in a shell.
        is_trial: see `run`.
        text: what the corpus and the tokenizer give, where that was read already.
    """
    settings = settings_of(cfg)
    run_dir = Path(settings.run_dir)
    quiet()
    device = construct("trainer", hardware.device, {"name": cfg["trainer"]["accelerator"]})
    check("model", target(cfg["model"]), cfg["model"])  # whose width the precision follows
    wanted = {"name": cfg["trainer"]["precision"], "device": device, "width": cfg["model"].get("n_embd", 0)}
    precision = construct("trainer", hardware.precision, wanted)
    cfg["trainer"] |= {"accelerator": device, "precision": precision}
    auto = cfg["data"].get("batch_size") == "auto"
    if auto:  # until there is a model to measure, the rows that the run had, or the default
        if before is None:
            del cfg["data"]["batch_size"]
        else:
            cfg["data"]["batch_size"] = before.cfg["data"]["batch_size"]
    elif isinstance(cfg["data"].get("batch_size"), str):
        raise UsageError(f"data.batch_size must be a number of rows, or auto, got {cfg['data']['batch_size']!r}")
    for group, node in parts(cfg).items():
        check(group, target(node), node)
    max_steps, accumulate = cfg["trainer"]["max_steps"], cfg["trainer"]["accumulate_grad_batches"]
    budget = construct("trainer", Budget, {"max_steps": max_steps, "max_time": cfg["trainer"].get("max_time")})
    for name, least in (("accumulate_grad_batches", 1), ("gradient_clip_val", 0)):
        if (cfg["trainer"].get(name) or 0) < least:
            raise UsageError(f"trainer.{name} must be at least {least}, got {cfg['trainer'].get(name)}")
    if cfg["trainer"]["devices"] != 1:
        raise UsageError(f"trainer.devices must be 1, a run uses one device so far, got {cfg['trainer']['devices']}")

    if before is not None and budget.max_steps < before.step:
        raise UsageError(f"trainer.max_steps={max_steps} is below the {before.step} steps that the run has made")

    # What can be built without the corpus is, before that is read: a mistake shows at once.
    known = checkpoint.rebuild(before.tokenizer) if before and before.tokenizer else source and source.tokenizer
    if known is None and text is None:
        build(cfg, "tokenizer", documents=())
    attention, schedule = build(cfg, "attention"), build(cfg, "schedule")
    own = {
        "callbacks.checkpoint": {"directory": str(run_dir / "checkpoints")},
        "callbacks.samples": {"run_dir": str(run_dir)},
    }
    callbacks = {name: build(cfg, name, **own.get(name, {})) for name in parts(cfg) if name.startswith("callbacks.")}
    with torch.device("meta"):  # without memory or arithmetic
        model = build(cfg, "model", vocab_size=1, attention=attention)
        build(cfg, "optimizer", model=model)
    layer = next(m for m in model.modules() if isinstance(m, SelfAttention))
    asked = {"dropout": layer.attention_dropout, "head_dim": layer.head_dim, "random": model.random is not None}
    construct("attention", attention.check, asked | {"device": device})

    corpus = build(cfg, "data")
    if text is None:
        splits = corpus.splits()
        tokenizer = known or build(cfg, "tokenizer", documents=texts(splits.train))
        encoded = (encode(documents, tokenizer, Path(corpus.cache_dir), corpus.num_proc) for documents in splits)
        text = Text(tokenizer, *encoded)
    tokenizer, train, validation = text
    if settings.minutes is not None:
        chosen = dial.choose(cfg, settings.minutes, *text, device=device, precision=precision, begun=begun)
        return _run(chosen, before, source, held, begun, command, is_trial, text)
    torch.manual_seed(settings.seed)
    model = build(cfg, "model", vocab_size=tokenizer.vocab_size, attention=attention)
    if source is not None:
        model.load_state_dict(source.model.state_dict())
    data = TextDataModule(
        train,
        validation,
        corpus=corpus,
        block_size=model.block_size,
        seed=settings.seed,
        accumulate=accumulate,
    )
    if auto:
        rows = accumulate * corpus.batch_size  # of an optimizer step
        corpus.batch_size = largest_batch(model, data, device=device, precision=precision, rows=rows)
        data.accumulate = accumulate = rows // corpus.batch_size
        cfg["data"]["batch_size"], cfg["trainer"]["accumulate_grad_batches"] = corpus.batch_size, accumulate
    if settings.dry_run:
        run_facts = {"device": device, "precision": precision, "budget": budget, "accumulate": accumulate}
        print(estimate(model, tokenizer, data, **run_facts))
        return nan

    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what is left in fp32
    module = LanguageModel(
        model,
        tokenizer,
        optimizer=build(cfg, "optimizer", model=model),
        schedule=schedule,
        budget=budget,
        bytes_per_id=torch.from_numpy(validation.bytes_per_id(tokenizer.n_bytes)),
        compile=settings.compile,
        on_bad_loss=settings.on_bad_loss,
    )
    n_targets = data.train_layout.n_targets
    metrics = Metrics(
        run_dir / "metrics.csv",
        settings.log_every,
        n_targets,
        budget,
        flops_per_token=model.flops_per_token(),
        peak_flops=hardware.peak_flops(device, precision),
    )
    keeper = callbacks["callbacks.checkpoint"]
    kind = {"n_parameters": model.n_parameters(), "device": device, "precision": precision}
    summary = Summary(run_dir / "summary.json", metrics, keeper, kind)
    pruning = []
    if is_trial and (run_dir.parent / JOURNAL).exists():
        from tinygpt.training.pruning import Pruning

        pruning = [Pruning(run_dir, metrics)]
    stop = StopOnSignal()

    trainer = build(
        cfg | {"trainer": cfg["trainer"] | {"max_time": None}},  # Lightning's would count the validations
        "trainer",
        logger=[build(cfg, name, run_dir=str(run_dir)) for name in parts(cfg) if name.startswith("logger.")],
        # Who stops between two steps comes last of those that do something after a step.
        callbacks=[metrics, Progress(metrics), *callbacks.values(), *pruning, stop, summary, Report(summary)],
        plugins=[CheckpointFiles(), LightningEnvironment()],  # of SLURM it would take its signals for its own
        deterministic=settings.deterministic,
        max_epochs=-1,
        val_check_interval=settings.eval_every * accumulate,  # Lightning counts batches here, not optimizer steps
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if before is None:
        if not (run_dir / "config.yaml").exists():  # if it does, the claim of another run came first
            held.enter_context(files.alone(run_dir))
        if (run_dir / "config.yaml").exists():
            raise UsageError(TAKEN.format(run_dir, typed("resume", str(run_dir))))
    else:
        changed = differences(before.cfg, cfg, schedule, before.step)
        if before.data and before.data["tokens"] != [train.path.name, validation.path.name]:
            changed.append("the text is another one; the best so far is of the one before")
        for change in changed:
            print(f"train.py: not equal to a run that was begun so: {change}", file=sys.stderr)
    frozen = cfg | {"model": cfg["model"] | {"vocab_size": tokenizer.vocab_size}, "resume": None}
    files.write_text(run_dir / "config.yaml", yaml.safe_dump(frozen, sort_keys=False))
    write_file(run_dir / "tokenizer.json", tokenizer)
    facts.write(run_dir / "facts.json", command, tokenizer, data, model.block_size, device)
    for logger in trainer.loggers:
        logger.log_hyperparams(frozen)
    print(
        f"{model.n_parameters():,} parameters, {tokenizer.vocab_size:,} tokens in the vocabulary; {device}, {precision}"
        f"\n{n_targets:,} tokens to train on, {data.val_layout.n_targets:,} to validate on; {run_dir}"
    )
    if before is not None:
        print(f"going on after step {budget.of(before.step)}")
    return fit(trainer, module, data, summary, stop, None if before is None else before.step)
