"""A corpus larger than memory: what encoding it takes.

    python -m benchmarks.large --gigabytes 2 --processes 1 2

Writes so much generated text in a temporary folder, once as one file and once as Parquet in the Hub's layout, runs
`train.py dry_run=true` on each in a fresh process with empty caches and a batch of one row, and watches the resident
memory of that process and of all that it starts, a page that several of them map being counted once. Linux alone: it
reads /proc.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import REPOSITORY, machine, save

BLOCK = 10**6  # bytes, about, of text generated at a time


def generated(n_bytes: int) -> Iterator[str]:
    """Lines of made-up words whose frequencies follow Zipf's law, in blocks."""
    rng = np.random.default_rng(0)
    letters = list("etaoinshrdlcumwfgypbvkjxqz")
    words = ["".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(2_000)]
    with_ends = [
        word + end for word in words for end in (*[""] * 200, *[","] * 20, *["."] * 20, *[".\n"] * 10, ".\n\n")
    ]
    while n_bytes > 0:
        drawn = rng.zipf(1.1, BLOCK // 8) * 7919 % len(with_ends)  # the frequent ones are spread over words and ends
        block = " ".join([with_ends[i] for i in drawn.tolist()])[:n_bytes]
        yield block
        n_bytes -= len(block)


def write(folder: Path, n_bytes: int) -> dict[str, str]:
    """The same text in two forms; returns what train.py calls them."""
    rows = folder / "rows"
    rows.mkdir(parents=True)
    schema = pa.schema({"text": pa.string()})
    parquet = pq.ParquetWriter(rows / "train-00000-of-00001.parquet", schema)
    with (folder / "text.txt").open("w") as text, parquet:
        for block in generated(n_bytes):
            text.write(block)
            parquet.write_table(pa.table({"text": block.split("\n\n")}, schema))
    return {"one file": f"data=text_files data.files={text.name}", "parquet": f"data=hub data.path={rows}"}


def resident(pid: int) -> int:
    """Bytes of memory that a process and its descendants hold."""
    total, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            rollup = (process / "smaps_rollup").read_text()
            total += 1024 * sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # gone meanwhile
            continue
    return total


def measure(data: str, tokenizer: str, processes: int, folder: Path) -> dict[str, float]:
    """Peak resident memory and seconds of one dry run."""
    environment = os.environ | {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, REPOSITORY / "train.py", *data.split(), f"tokenizer={tokenizer}", "dry_run=true"]
    command += [f"data.num_proc={processes}", f"data.cache_dir={folder / 'cache'}", "data.batch_size=1"]
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            peak = max(peak, resident(run.pid))
            time.sleep(0.05)
        out, err = run.communicate()
    if run.returncode:
        raise RuntimeError(err)
    print(next(line for line in out.splitlines() if line.startswith("training")), file=sys.stderr)
    return {"peak_mb": peak / 1e6, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokenizers", nargs="+", default=["char"])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    args = parser.parse_args()

    facts = machine("datasets", "tokenizers", "torch")
    print(", ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")
    print(f"| {args.gigabytes:g} GB as | tokenizer | processes | peak memory | seconds |")
    print("|---|---|---|---|---|")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        corpora = write(Path(folder) / "corpus", round(args.gigabytes * 1e9))
        for form, tokenizer, processes in ((f, t, n) for f in corpora for t in args.tokenizers for n in args.processes):
            with tempfile.TemporaryDirectory() as caches:
                found = measure(corpora[form], tokenizer, processes, Path(caches))
            figures.append({"form": form, "tokenizer": tokenizer, "processes": processes} | found)
            peak, seconds = found["peak_mb"], found["seconds"]
            print(f"| {form} | {tokenizer} | {processes} | {peak:,.0f} MB | {seconds:,.0f} |", flush=True)
    if args.out:
        save(args.out, facts, gigabytes=args.gigabytes, runs=figures)


if __name__ == "__main__":
    main()
