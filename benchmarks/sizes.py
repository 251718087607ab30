"""Which size of a model is the best for a time, on two corpora.

    python -m benchmarks.sizes --shakespeare FOLDER --out FILE --time    # what a step of each size takes
    python -m benchmarks.sizes --shakespeare FOLDER --out FILE           # every training of the grid that FILE lacks

The first goes alone on the machine, all sizes taking turns with both cores. A training of the second has as many steps
as its time had room for, so that it may be slow: two go side by side, one thread each. FOLDER holds the Parquet files
of the Hub's `karpathy/tiny_shakespeare`. Further words go to every `train.py`.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from benchmarks import machine, save, trained
from tinygpt.training.dial import BLOCK, DROPPED_STEP, SIZES, Size, family, rates, regularisation


class Corpus(NamedTuple):
    words: str
    few: bool  # ids in its vocabulary
    rows: int  # of a step, BLOCK tokens each
    tokens: int  # to train on, about


CORPORA = {
    "tiny_shakespeare": Corpus("data=tiny_shakespeare tokenizer=char", True, 1, 1_003_855),
    "python_stdlib": Corpus("data=python_stdlib tokenizer=bpe", False, 2, 2_864_362),
}
COMMON = (
    f"model.block_size={BLOCK} attention=sliding_window attention.block=64 schedule.warmup_steps=20 eval_every=1000000"
)
WIDTHS = {size.n_embd: size for size in (Size(64, 2, 1), *SIZES)}
GRID = {120: (64, 96, 128, 160), 300: (64, 96, 128, 192), 900: (96, 128, 160, 192)}  # seconds: widths
TIMED_STEPS, ROUNDS = 30, 2
REACHED = ("val_loss", "val_bits_per_byte", "train_loss", "step", "tokens_seen", "epoch", "flops", "n_parameters")


def run(name: str, width: int, max_steps: int, words: list[str], threads: int) -> dict[str, Any]:
    """One training, of as many steps or, with dropout, fewer that take as long; its summary."""
    corpus = CORPORA[name]
    epochs = max_steps * corpus.rows * BLOCK / corpus.tokens
    model = WIDTHS[width]._asdict() | family(corpus.few) | regularisation(epochs)
    if model["dropout"]:
        max_steps = round(max_steps / DROPPED_STEP)
    return trained(
        *COMMON.split(),
        *corpus.words.split(),
        f"data.batch_size={corpus.rows}",
        *(f"model.{key}={value}" for key, value in model.items()),
        *(f"optimizer.{key}={value}" for key, value in rates(corpus.few).items()),
        f"trainer.max_steps={max_steps}",
        *words,
        threads=threads,
    )


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| corpus | seconds | width | steps | tokens | epochs | bits per byte |", "|---|---|---|---|---|---|---|"]
    for r in sorted(runs, key=lambda r: (r["corpus"], r["seconds"], r["width"], r["seed"])):
        lines.append(
            f"| {r['corpus']} | {r['seconds']} | {r['width']} | {r['step']:,} | {r['tokens_seen']:,} |"
            f" {r['epoch']:.1f} | {r['val_bits_per_byte']:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shakespeare", required=True, metavar="FOLDER", help="the corpus")
    p.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the results are kept, as JSON")
    p.add_argument("--time", action="store_true", help="measure what a step takes, and nothing else")
    p.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    p.add_argument("--corpus", choices=list(CORPORA), help="one of them alone")
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="for every training")
    args = p.parse_args()
    extra = {"tiny_shakespeare": [f"data.path={args.shakespeare}", *args.words], "python_stdlib": args.words}
    corpora = [args.corpus] if args.corpus else list(CORPORA)
    facts = machine("torch", "lightning")
    kept: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    seconds, runs = kept.get("seconds_a_step", {}), kept.get("runs", [])

    if args.time:
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for corpus, width in product(corpora, WIDTHS):
                summary = run(corpus, width, TIMED_STEPS, [*extra[corpus], "data.max_val_tokens=1024"], threads=2)
                found.setdefault((corpus, width), []).append(summary["train_seconds"] / TIMED_STEPS)
        for (corpus, width), times in found.items():
            seconds.setdefault(corpus, {})[str(width)] = statistics.median(times)
        save(args.out, facts, seconds_a_step=seconds, runs=runs)
        print(json.dumps(seconds, indent=1))
        return

    lock = Lock()

    def train(cell: dict[str, Any]) -> None:
        max_steps = round(cell["seconds"] / seconds[cell["corpus"]][str(cell["width"])])
        words = [*extra[cell["corpus"]], f"seed={args.seed}"]
        summary = run(cell["corpus"], cell["width"], max_steps, words, threads=1)
        with lock:
            runs.append(cell | {key: summary[key] for key in REACHED})
            save(args.out, facts, seconds_a_step=seconds, runs=runs)
            print(table(runs[-1:]).splitlines()[-1], flush=True)

    cells = [
        {"corpus": corpus, "seconds": budget, "width": width, "seed": args.seed, "words": args.words}
        for budget, widths in GRID.items()
        for corpus, width in product(corpora, widths)
    ]
    if any(str(cell["width"]) not in seconds.get(cell["corpus"], {}) for cell in cells):
        p.error(f"{args.out} does not say what a step takes; run with --time first")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, [cell for cell in cells if not any(cell.items() <= r.items() for r in runs)]))
    print(f"\n{table(runs)}")


if __name__ == "__main__":
    main()
