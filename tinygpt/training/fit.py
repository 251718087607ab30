"""Training what has been built, and what is said however it ends."""

import shlex
import sys
import traceback
from pathlib import Path
from signal import Signals
from typing import Any

import lightning.pytorch as pl

from tinygpt import hardware
from tinygpt.config import typed
from tinygpt.data.module import TextDataModule
from tinygpt.errors import UserError, one_line
from tinygpt.generation.text import load
from tinygpt.training.estimate import out_of_memory
from tinygpt.training.interrupt import Interrupted, StopOnSignal
from tinygpt.training.metrics import Metrics
from tinygpt.training.module import LanguageModel
from tinygpt.training.summary import NO_LOSS, Summary


def fit(
    trainer: pl.Trainer,
    module: LanguageModel,
    data: TextDataModule,
    summary: Summary,
    stop: StopOnSignal,
    begun_at: int | None,
) -> float:
    """Train to the end of the budget, and report.

    Args:
        trainer, module, data: what Lightning trains, by what, on what.
        summary: of the run, in its directory.
        stop: the callback that hears signals.
        begun_at: the step that a run which is gone on with has made; None: it is a new one.

    Returns:
        The best validation bits per byte.

    Raises:
        UserError: there was too little memory, or training diverged.
        SystemExit: a signal stopped the run.
    """
    run_dir, metrics, keeper = summary.path.parent, summary.metrics, summary.checkpoint
    budget = module.budget
    resume = typed("resume", str(run_dir))
    available = hardware.memory(summary.facts["device"])
    try:
        with stop:
            trainer.fit(module, datamodule=data, ckpt_path=keeper.last_path if begun_at else None)
    except BaseException as error:
        step = keeper.saved_step or begun_at
        if step:
            print(f"\nthe last checkpoint is {keeper.last_path}, of step {step}", file=sys.stderr)
            print(f"to go on from it: python train.py {resume}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error  # the second one, which Lightning makes an exit with status 1
        if hardware.is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # they hold the tensors that there was no room for
            module.zero_grad(set_to_none=True)
            had: dict[str, Any] = {name: summary.facts[name] for name in ("device", "precision")} | {
                "available": available
            }
            message = out_of_memory(module.model, data, accumulate=data.accumulate, **had)
            summary.write("failed", message)
            raise UserError(message) from error
        if not isinstance(error, Interrupted):
            raise
    finally:
        for logger in trainer.loggers:
            if log_run := getattr(logger, "log_run", None):
                try:
                    log_run(run_dir)
                except Exception as error:  # a network's, it may be, which is none of the training's
                    print(f"train.py: the run's files could not be logged: {one_line(error)}", file=sys.stderr)
            finish = getattr(getattr(logger, "experiment", None), "finish", None)
            if finish:  # else the next trial of a sweep goes on with this one's W&B run
                finish()
    if stop.received is not None:
        print(f"train.py: stopped by {Signals(stop.received).name} after step {metrics.step}", file=sys.stderr)
        raise SystemExit(128 + stop.received)
    if metrics.best_val_bits_per_byte is None:
        raise UserError(NO_LOSS)
    if budget.progress(metrics.step) < 1:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        reasons = [reason for callback in callbacks if (reason := getattr(callback, "reason", None))]
        print(f"stopped early, after step {budget.of(metrics.step)}: {', '.join(reasons)}")
    elif metrics.step == begun_at:
        print(f"no step was left; for more: python train.py {resume} {budget.doubled(metrics.step)}")
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
