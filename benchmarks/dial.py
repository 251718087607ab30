"""Whether `minutes=` keeps its time, and what it reaches, on two corpora.

    python -m benchmarks.dial --shakespeare FOLDER --minutes 2 5 15 --out FILE
    python -m benchmarks.dial --out FILE --plot PNG     # beside every size of benchmarks.sizes

Each training goes alone on the machine. FOLDER holds the Parquet files of the Hub's `karpathy/tiny_shakespeare`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY, machine, save, trained
from benchmarks.sizes import CORPORA

SIZES = REPOSITORY / "benchmarks" / "results" / "sizes.json"


def plot(runs: list[dict[str, Any]], png: Path) -> None:
    """What each size reached in each time, a panel a corpus, and what the dial reached as a star at its choice."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    sizes = json.loads(SIZES.read_text())["runs"]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, len(CORPORA))
    for panel, corpus in zip(panels, CORPORA, strict=True):
        for n, seconds in enumerate(sorted({cell["seconds"] for cell in sizes})):
            cells = [c for c in sizes if (c["corpus"], c["seconds"]) == (corpus, seconds)]
            cells.sort(key=lambda cell: cell["width"])
            x, y = [c["width"] for c in cells], [c["val_bits_per_byte"] for c in cells]
            panel.plot(x, y, "o-", color=f"C{n}", label=f"{seconds // 60} min")
            chosen = [r for r in runs if (r["corpus"], 60 * r["minutes"]) == (corpus, seconds)]
            panel.plot(
                [r["width"] for r in chosen], [r["val_bits_per_byte"] for r in chosen], "*", color=f"C{n}", ms=15
            )
        panel.set(title=corpus, xlabel="width of the model", ylabel="bits per byte", xscale="log")
        panel.set_xticks(sorted({cell["width"] for cell in sizes}))
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
        panel.legend(title="star: minutes=")
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=110)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shakespeare", metavar="FOLDER", help="the corpus")
    p.add_argument("--minutes", type=float, nargs="+", default=[], help="what is tried, on both corpora")
    p.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the results are kept, as JSON")
    p.add_argument("--plot", type=Path, metavar="PNG", help="draw them")
    p.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = p.parse_args()
    if args.minutes and not args.shakespeare:
        p.error("--minutes needs --shakespeare FOLDER")
    runs: list[dict[str, Any]] = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    for minutes in args.minutes:
        for name, corpus in CORPORA.items():
            path = [f"data.path={args.shakespeare}"] if name == "tiny_shakespeare" else []
            begun = time.monotonic()
            summary = trained(*corpus.words.split(), *path, f"minutes={minutes:g}", f"seed={args.seed}")
            cell = {"corpus": name, "minutes": minutes, "seed": args.seed, "seconds": time.monotonic() - begun}
            reached = {key: summary[key] for key in ("val_bits_per_byte", "val_loss", "tokens_seen")}
            runs.append(cell | reached | {"width": summary["model"]["n_embd"]})
            save(args.out, machine("torch", "lightning"), runs=runs)
            print(runs[-1], flush=True)
    if args.plot:
        plot(runs, args.plot)


if __name__ == "__main__":
    main()
