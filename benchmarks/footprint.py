"""What training takes besides time a step: memory with and without gradient checkpointing, and seconds to begin.

    python -m benchmarks.footprint
    python -m benchmarks.footprint --device cuda

Memory: the peak of a step of a GPT-2 of 12 layers above what the process had before it, in fresh processes, by turns.
Start: seconds from Enter to the first optimizer step on a corpus that is in the cache, and to the end of `--help`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import REPOSITORY, machine, save
from benchmarks.attention import resident
from benchmarks.train import COMMAND, corpus, synchronize
from tinygpt.model import GPT2, next_token_loss

DEEP: dict[str, Any] = {
    "vocab_size": 65,
    "n_layer": 12,
    "n_head": 6,
    "n_embd": 384,
    "block_size": 256,
}  # for memory, 16 rows

DEEP_ROWS = 16


def deep_step(gradient_checkpointing: bool, device: str) -> tuple[float, float]:
    """MB above what there was before, at the peak of the first step, and milliseconds of a later one."""
    torch.manual_seed(0)
    model = GPT2(**DEEP, gradient_checkpointing=gradient_checkpointing).to(device).train()
    ids = torch.randint(DEEP["vocab_size"], (DEEP_ROWS, DEEP["block_size"]), device=device)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step() -> None:
        next_token_loss(model(ids), ids).backward()
        synchronize(device)

    if device == "cuda":
        before = torch.cuda.memory_allocated()
        step()
        peak = torch.cuda.max_memory_allocated()
    else:
        before = resident("VmRSS")
        step()
        peak = resident("VmHWM")
    found = []
    for _ in range(3):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return (peak - before) / 1e6, 1000 * statistics.median(found)


def memory(device: str, rounds: int) -> dict[str, list[float]]:
    """[MB, milliseconds] with and without gradient checkpointing, each in processes of its own, by turns."""
    found: dict[str, list[list[float]]] = {"kept": [], "gradient checkpointing": []}
    # What is freed goes back at once: else the C library keeps some of it, more or less by chance.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    for _ in range(rounds):
        for name, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.footprint", "--device", device, "--deep", name]
            process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            runs.append(json.loads(process.stdout))
    return {name: [statistics.median(values) for values in zip(*runs, strict=True)] for name, runs in found.items()}


def start(rounds: int) -> dict[str, float]:
    """Seconds to the first optimizer step, with the corpus in the cache, and of `--help`; medians."""
    command = [sys.executable, REPOSITORY / "train.py"]
    found: dict[str, list[float]] = {"first step": [], "--help": []}
    with tempfile.TemporaryDirectory() as folder:
        corpus(Path(folder) / "corpus.txt")
        for i in range(rounds + 1):
            words = [*COMMAND, "trainer.max_steps=1000", "log_every=1", f"run_dir=run{i}"]
            begin = time.perf_counter()
            process = subprocess.Popen([*command, *words], cwd=folder, stdout=subprocess.DEVNULL)
            rows = Path(folder) / f"run{i}" / "metrics.csv"
            while process.poll() is None and not (rows.exists() and rows.read_text().count("\n") > 1):
                time.sleep(0.01)
            found["first step"].append(time.perf_counter() - begin)
            assert process.poll() is None, "the run has ended before its first step"
            process.kill()
            process.wait()
            begin = time.perf_counter()
            subprocess.run([*command, "--help"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
            found["--help"].append(time.perf_counter() - begin)
    return {name: statistics.median(times[1:]) for name, times in found.items()}  # the first fills the cache


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    p.add_argument("--deep", help=argparse.SUPPRESS)  # what a process that measures memory is asked
    args = p.parse_args()
    if args.deep:
        print(json.dumps(deep_step(args.deep != "kept", args.device)))
        return

    facts = machine("torch", "lightning")
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    found = memory(args.device, args.rounds)
    print("\n| 12 layers, 6 heads, 384 wide, 16 x 256 tokens | MB | ms |\n|---|---|---|")
    for name, (mb, ms) in found.items():
        print(f"| {name} | {mb:,.0f} | {ms:,.0f} |")
    less, more = (b / a - 1 for a, b in zip(*found.values(), strict=True))
    print(f"\ngradient checkpointing: {less:+.0%} memory, {more:+.0%} time")
    seconds = start(args.rounds)
    print("\n" + "; ".join(f"{name}: {value:.1f} s" for name, value in seconds.items()))
    if args.out:
        save(args.out, facts, memory=found, start_seconds=seconds)


if __name__ == "__main__":
    main()
