"""What a recipe reaches in the time in which the known small reference makes its 2,000 steps.

    python -m benchmarks.equal_time --shakespeare FOLDER
    python -m benchmarks.equal_time --shakespeare FOLDER --seeds 1 --minutes 20 experiment=shakespeare_cpu

FOLDER holds the Parquet files of the Hub's `karpathy/tiny_shakespeare`. Before each run and after it, a step of the
reference is measured (GPT-2 with 4 layers, 4 heads, 128 wide, 12 rows of 64 characters, AdamW, in a bare loop); the run
gets the time of 2,000 of them as its `trainer.max_time`, or the minutes asked for. Validation and compiling are not in
it. Further words go to `train.py`.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, save, trained
from benchmarks.train import BLOCK, HEADS, LAYERS, VOCABULARY, WIDTH, bare
from tinygpt.model import GPT2

STEPS = 2000  # of the reference
MEASURED = 60


def reference() -> float:
    """Seconds of a step, the median."""
    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH}
    step = bare(GPT2(vocab_size=VOCABULARY, block_size=BLOCK, **sizes), "cpu", torch.float32)
    found = []
    for _ in range(MEASURED):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return statistics.median(found[10:])


def max_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"trainer.max_time=00:00:{minutes:02}:{rest:02}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shakespeare", type=Path, required=True, metavar="FOLDER", help="the corpus")
    p.add_argument("--seeds", type=int, default=3, metavar="N", help="runs (default: %(default)s)")
    p.add_argument("--minutes", type=float, help="of training, instead of the reference's time")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    p.add_argument("words", nargs="*", default=["experiment=shakespeare_cpu"], help="for train.py")
    args = p.parse_args()

    facts = machine("torch", "lightning") | {"words": " ".join(args.words)}
    print("; ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")
    print("| seed | val_loss | bits per byte | seconds | steps | tokens | FLOPs | the reference, ms before and after |")
    print("|---|---|---|---|---|---|---|---|")
    runs = []
    for seed in range(1, args.seeds + 1):
        before = reference()
        seconds = 60 * args.minutes if args.minutes else STEPS * before
        run = trained(*args.words, f"data.path={args.shakespeare}", f"seed={seed}", max_time(seconds))
        after = reference()
        run |= {"seed": seed, "reference_ms": [1000 * before, 1000 * after]}
        run["reference_steps"] = run["train_seconds"] / statistics.mean([before, after])
        runs.append(run)
        print(
            f"| {seed} | {run['val_loss']:.4f} | {run['val_bits_per_byte']:.4f} | {run['train_seconds']:.0f} |"
            f" {run['step']:,} | {run['tokens_seen']:,} | {run['flops']:.2e} | {1000 * before:.1f}, {1000 * after:.1f}:"
            f" {run['reference_steps']:,.0f} steps |",
            flush=True,
        )
    losses = [run["val_loss"] for run in runs]
    print(f"\nmean {statistics.mean(losses):.4f}")
    if args.out:
        save(args.out, facts, runs=runs)


if __name__ == "__main__":
    main()
