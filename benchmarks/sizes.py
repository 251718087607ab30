"""Which size of a model is the best for a time, on two corpora.

    python -m benchmarks.sizes --shakespeare FOLDER --out FILE --time    # what a step of each size takes
    python -m benchmarks.sizes --shakespeare FOLDER --out FILE           # every training of the grid that FILE lacks

The first goes alone on the machine, all sizes taking turns with both cores. A training of the second has as many steps
as its time had room for, so that it may be slow: two go side by side, one thread each. FOLDER holds the Parquet files
of the Hub's `karpathy/tiny_shakespeare`. Further words go to every `train.py`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks import machine, save

TRAIN = Path(__file__).parents[1] / "train.py"
SIZES = {96: (3, 2), 128: (4, 2), 160: (5, 2), 192: (6, 3), 256: (8, 4)}  # width: layers, heads
GRID = {120: (96, 128, 160), 300: (96, 128, 192), 900: (128, 192)}  # seconds: widths
BLOCK = 1024
COMMON = (
    f"model.block_size={BLOCK} attention=sliding_window attention.block=64 model.window=64 model.match=8"
    " schedule.warmup_steps=20 eval_every=1000000"
)
CORPORA = {
    "tiny_shakespeare": "data=tiny_shakespeare tokenizer=char model.init=zero"
    " model.ngram_rows=[4096,32768,131072,262144]",
    "python_stdlib": "data=python_stdlib tokenizer=bpe model.ngram_rows=[65536,262144]",
}
TOKENS = {"tiny_shakespeare": 1_003_855, "python_stdlib": 2_864_362}  # to train on, about
ROWS = {"tiny_shakespeare": 1, "python_stdlib": 2}
TIMED_STEPS, ROUNDS = 40, 3
REACHED = ("val_loss", "val_bits_per_byte", "train_loss", "step", "tokens_seen", "epoch", "flops", "n_parameters")


def run(corpus: str, width: int, max_steps: int, shakespeare: str, words: list[str], threads: int) -> dict[str, Any]:
    """One training; its summary."""
    layers, heads = SIZES[width]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), *f"{COMMON} {CORPORA[corpus]}".split(), f"run_dir={folder}/run"]
        command += [f"data.batch_size={ROWS[corpus]}"]
        # Of a text that is read once the tables may know all.
        epochs = max_steps * ROWS[corpus] * BLOCK / TOKENS[corpus]
        command += [f"model.ngram_dropout={min(0.5, max(0.0, (epochs - 1) / 4))}"]
        command += [f"model.n_embd={width}", f"model.n_layer={layers}", f"model.n_head={heads}"]
        command += [f"trainer.max_steps={max_steps}", *words]
        command += [f"data.path={shakespeare}"] if corpus == "tiny_shakespeare" else []
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        return json.loads((Path(folder) / "run" / "summary.json").read_text())


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
    shakespeare = str(Path(args.shakespeare).resolve())
    corpora = [args.corpus] if args.corpus else list(CORPORA)
    facts = machine("torch", "lightning")
    kept: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    seconds, runs = kept.get("seconds_a_step", {}), kept.get("runs", [])

    if args.time:
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for corpus, width in product(corpora, SIZES):
                summary = run(corpus, width, TIMED_STEPS, shakespeare, args.words, threads=2)
                found.setdefault((corpus, width), []).append(summary["train_seconds"] / TIMED_STEPS)
        for (corpus, width), times in found.items():
            seconds.setdefault(corpus, {})[str(width)] = statistics.median(times)
        save(args.out, facts, seconds_a_step=seconds, runs=runs)
        print(json.dumps(seconds, indent=1))
        return

    lock = Lock()

    def train(cell: dict[str, Any]) -> None:
        max_steps = round(cell["seconds"] / seconds[cell["corpus"]][str(cell["width"])])
        words = [*args.words, f"seed={args.seed}"]
        summary = run(cell["corpus"], cell["width"], max_steps, shakespeare, words, threads=1)
        with lock:
            runs.append(cell | {key: summary[key] for key in REACHED})
            save(args.out, facts, seconds_a_step=seconds, runs=runs)
            print(table(runs[-1:]).splitlines()[-1], flush=True)

    cells = [
        {"corpus": corpus, "seconds": budget, "width": width, "seed": args.seed, "words": args.words}
        for budget, widths in GRID.items()
        for corpus, width in product(corpora, widths)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, [cell for cell in cells if not any(cell.items() <= r.items() for r in runs)]))
    print(f"\n{table(runs)}")


if __name__ == "__main__":
    main()
