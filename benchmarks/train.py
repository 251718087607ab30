"""What a training step costs: ours with bar and logging, the same without Lightning, `transformers`, products alone.

    python -m benchmarks.train
    python -m benchmarks.train --only memory
    python -m benchmarks.train --device cuda --dtype bfloat16

Steps: the known small reference's model (GPT-2, 4 layers, 4 heads, 128 wide, 65 ids) on 12 rows of 64 random tokens, in
one process, all taking turns: the run of `train.py` with its bar, its records and its checks; a bare loop over the same
model (forward, loss, backward, clipping, AdamW); the same loop over `transformers`' GPT-2; and the matrix products of
such a step and nothing else. Memory: the peak of a step above what the process had before it, with and without
gradient checkpointing, in fresh processes. Start: seconds from Enter to the first optimizer step on a corpus that is in
the cache, and to the end of `--help`.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from benchmarks import machine, save
from benchmarks.attention import resident
from tinygpt.model import GPT2, next_token_loss
from tinygpt.optim.adamw import adamw

VOCABULARY, LAYERS, HEADS, WIDTH, BLOCK, ROWS = 65, 4, 4, 128, 64, 12
TURN = 20  # steps
DEEP: dict[str, Any] = {
    "vocab_size": 65,
    "n_layer": 12,
    "n_head": 6,
    "n_embd": 384,
    "block_size": 256,
}  # for memory, 16 rows

DEEP_ROWS = 16

REPOSITORY = Path(__file__).resolve().parents[1]

COMMAND = [
    "data=text_files",
    "data.files=corpus.txt",
    f"data.batch_size={ROWS}",
    "data.val_fraction=0.01",
    "tokenizer=char",
    "model=gpt2",
    f"model.block_size={BLOCK}",
    f"model.n_layer={LAYERS}",
    f"model.n_head={HEADS}",
    f"model.n_embd={WIDTH}",
    "eval_every=1000000",
    "run_dir=run",
]


def corpus(path: Path) -> None:
    """A text of 65 characters in no order: what a step costs does not depend on it."""
    torch.manual_seed(0)
    path.write_text("".join(chr(48 + i) for i in torch.randint(VOCABULARY, (1_000_000,)).tolist()))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bare(model: nn.Module, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """A training step in as few lines as there can be, on a model that returns logits."""
    model.to(device).train()
    optimizer = adamw(model)
    ids = torch.randint(VOCABULARY, (1_000_000,))
    autocast = torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32)

    def step() -> None:
        rows = torch.stack([ids[i : i + BLOCK + 1] for i in torch.randint(len(ids) - BLOCK - 1, (ROWS,)).tolist()])
        rows = rows.to(device)
        with autocast:
            logits = model(rows[:, :-1])
        next_token_loss(getattr(logits, "logits", logits), rows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def products(model: GPT2, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """The matrix products of a step: three for each linear layer, six for each layer's attention."""
    N, D = ROWS * BLOCK, WIDTH // HEADS
    new = {"device": device, "dtype": dtype}
    work: list[tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]] = []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            m, n = layer.weight.shape
            x, w, y = torch.randn(N, n, **new), torch.randn(m, n, **new), torch.randn(N, m, **new)
            work += [(torch.mm, x, w.T, torch.empty_like(y)), (torch.mm, y, w, torch.empty_like(x))]
            work += [(torch.mm, y.T, x, torch.empty_like(w))]
    for _ in range(LAYERS):
        x, a = torch.randn(ROWS * HEADS, BLOCK, D, **new), torch.randn(ROWS * HEADS, BLOCK, BLOCK, **new)
        work += 2 * [(torch.bmm, x, x.mT, torch.empty_like(a))] + 4 * [(torch.bmm, a, x, torch.empty_like(x))]

    def step() -> None:
        for product, a, b, out in work:
            product(a, b, out=out)

    return step


class Turns(pl.Callback):
    """Between two turns of the run, one of each peer."""

    peers: dict[str, Callable[[], None]]
    device: str
    times: dict[str, list[float]]  # seconds a step, by turn

    def on_train_start(self, *_others: Any) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, *_others: Any) -> None:
        if trainer.global_step % TURN:
            return
        synchronize(self.device)
        self.times.setdefault("tinygpt", []).append((time.perf_counter() - self.since) / TURN)
        for name, step in self.peers.items():
            begin = time.perf_counter()
            for _ in range(TURN):
                step()
            synchronize(self.device)
            self.times.setdefault(name, []).append((time.perf_counter() - begin) / TURN)
        self.since = time.perf_counter()


class Terminal(io.StringIO):
    """Where the run's bar is drawn."""

    def isatty(self) -> bool:
        return True


def steps(rounds: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Median milliseconds of a step, of each."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import train
    from benchmarks import train as module  # this file, under the name that the configuration gives it

    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=BLOCK, **sizes, **dropouts))
    model = GPT2(vocab_size=VOCABULARY, block_size=BLOCK, **sizes)
    module.Turns.peers = {
        "bare loop": bare(model, device, dtype),
        "transformers": bare(theirs, device, dtype),
        "products": products(model, device, dtype),
    }
    module.Turns.device, module.Turns.times = device, {}
    precision = "32-true" if dtype == torch.float32 else "bf16-mixed"
    words = [*COMMAND, f"trainer.max_steps={(rounds + 1) * TURN}", f"trainer.accelerator={device}"]
    words += [f"trainer.precision={precision}", "+callbacks.turns._target_=benchmarks.train.Turns"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        corpus(Path("corpus.txt"))
        sys.argv[1:] = words
        with contextlib.redirect_stdout(Terminal()):
            assert train.main() == 0
    return {name: 1000 * statistics.median(times[1:]) for name, times in module.Turns.times.items()}


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
            command = [sys.executable, "-m", "benchmarks.train", "--device", device, "--deep", name]
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
    parts = ["steps", "memory", "start"]
    p.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    p.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="(default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    p.add_argument("--deep", help=argparse.SUPPRESS)  # what a process that measures memory is asked
    args = p.parse_args()
    if args.deep:
        print(json.dumps(deep_step(args.deep != "kept", args.device)))
        return

    facts = machine("torch", "lightning", "transformers") | {"dtype": args.dtype}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    results: dict[str, object] = {}
    if "steps" in args.only:
        found = results["steps_ms"] = steps(args.rounds, args.device, getattr(torch, args.dtype))
        ours = found["tinygpt"]
        print("\n| a step of 12 x 64 tokens | ms | of ours |\n|---|---|---|")
        for name, ms in found.items():
            print(f"| {name} | {ms:.1f} | {ms / ours:.1%} |")
        print(f"\noverhead over the bare loop: {ours / found['bare loop'] - 1:.1%}")
    if "memory" in args.only:
        found = results["memory"] = memory(args.device, min(args.rounds, 3))
        print("\n| 12 layers, 6 heads, 384 wide, 16 x 256 tokens | MB | ms |\n|---|---|---|")
        for name, (mb, ms) in found.items():
            print(f"| {name} | {mb:,.0f} | {ms:,.0f} |")
        less, more = (b / a - 1 for a, b in zip(*found.values(), strict=True))
        print(f"\ngradient checkpointing: {less:+.0%} memory, {more:+.0%} time")
    if "start" in args.only:
        found = results["start_seconds"] = start(min(args.rounds, 3))
        print("\n" + "; ".join(f"{name}: {seconds:.1f} s" for name, seconds in found.items()))
    if args.out:
        save(args.out, facts, **results)


if __name__ == "__main__":
    main()
