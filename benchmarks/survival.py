"""Kill a training process with SIGKILL, go on with the run, and compare what it leaves with a run left alone.

    python -m benchmarks.survival
    python -m benchmarks.survival --kills 3 model=gpt2 data.num_workers=2

Each time a run is begun anew, killed once and gone on with to its end: at any moment of its life, twice in four at a
moment of its training, and once in four while a checkpoint is being written. Equal means the same to the last bit:
weights, optimizer, averaged weights, best checkpoints, metrics.csv but for its times. Exit status 1: they were not.
"""

import argparse
import csv
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import REPOSITORY, machine, save
from tinygpt import checkpoint

TIMES = ("train_seconds", "tokens_per_second", "utilisation", "peak_memory")
MOMENTS = ("any", "training", "checkpoint", "training")

RUN = [
    "data=text_files",
    "data.files=corpus.txt",
    "tokenizer=byte",
    "data.batch_size=8",
    "model.n_layer=2",
    "model.n_embd=64",
    "model.block_size=64",
    "model.dropout=0.1",
    "callbacks=weight_averaging",
    "trainer.max_steps=150",
    "eval_every=10",
    "data.max_val_tokens=2048",
    "log_every=3",
]


def result(run: Path) -> dict[str, Any]:
    """All that a run leaves and that another one must leave too: times are left out, tensors become their bytes."""
    found = {path.name: _plain(checkpoint.load(path)) for path in sorted((run / "checkpoints").iterdir())}
    with (run / "metrics.csv").open(newline="") as file:
        found["metrics.csv"] = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    summary = json.loads((run / "summary.json").read_text())
    return found | {"summary.json": {k: v for k, v in summary.items() if k not in (*TIMES, "checkpoint")}}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):  # Lightning's loops count the batches of a process
        return {k: _plain(v) for k, v in value.items() if k not in (*TIMES, "_recorded", "loops")}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def start(folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, str(REPOSITORY / "train.py"), f"data.cache_dir={folder / 'cache'}", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        sys.exit(f"train.py failed with status {process.returncode}:\n{output}")


def kill(process: subprocess.Popen, run: Path, moment: str, life: float, training: float) -> str:
    """Kill a process at a moment; returns where it was."""
    began = time.monotonic()
    if moment == "any":
        time.sleep(random.uniform(0, life))
    else:
        while not (run / "summary.json").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.uniform(0, training))
    if moment == "checkpoint":
        while not any((run / "checkpoints").glob("*.unfinished")) and process.poll() is None:
            pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    writing = any((run / "checkpoints").glob("*.unfinished"))
    summary = run / "summary.json"
    step = f"step {json.loads(summary.read_text())['step']} or later" if summary.exists() else "before training"
    return f"{time.monotonic() - began:.1f} s after its start, {step}{', writing a checkpoint' if writing else ''}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kills", type=int, default=20, metavar="N", help="(default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="further settings of the run")
    args = p.parse_args()
    random.seed(args.seed)
    facts = machine("torch", "lightning")
    print("; ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [*RUN, *args.overrides]
        sources = sorted((REPOSITORY / "tinygpt").rglob("*.py"))
        (folder / "corpus.txt").write_text("".join(path.read_text() for path in sources))
        finish(start(folder, *words, "run_dir=warm"))  # encodes the text
        began = time.monotonic()
        finish(start(folder, *words, "run_dir=alone"))
        life = time.monotonic() - began
        expected = result(folder / "alone")
        training = json.loads((folder / "alone" / "summary.json").read_text())["train_seconds"]
        print(f"left alone: {life:.1f} s, {training:.1f} s of them training", flush=True)

        rows = []
        for i in range(args.kills):
            run = folder / f"run{i}"
            process = start(folder, *words, f"run_dir={run.name}")
            where = kill(process, run, MOMENTS[i % len(MOMENTS)], life, training)
            begun = (run / "config.yaml").exists()
            finish(start(folder, f"resume={run.name}") if begun else start(folder, *words, f"run_dir={run.name}"))
            found = result(run)
            differ = [part for part in expected.keys() | found.keys() if expected.get(part) != found.get(part)]
            rows.append({"killed": where, "begun": begun, "equal": not differ})
            print(f"{i + 1}. killed {where}: {'equal' if not differ else f'NOT EQUAL: {differ}'}", flush=True)
    equal = sum(row["equal"] for row in rows)
    print(f"\n{equal} of {len(rows)} equal")
    if args.out:
        save(args.out, facts, equal=equal, kills=rows)
    sys.exit(equal != len(rows))


if __name__ == "__main__":
    main()
