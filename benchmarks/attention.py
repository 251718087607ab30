"""What each kernel of attention costs: milliseconds and memory, along the length of the sequence.

    python -m benchmarks.attention
    python -m benchmarks.attention --tokens 0                            # the first table alone
    python -m benchmarks.attention --device cuda --dtype bfloat16        # flex too

The kernel alone, from q, k and v to the output, causal, without projections and dropout; 12 heads of 64 channels. The
first table is at 512 tokens, the second at lengths from 128 to 16,384 whose rows share a fixed number of tokens.
Times are medians of turns that all kernels take one after the other, after a turn that does not count. Memory is what
the peak is above the inputs, measured in a fresh process for each cell; on a CPU, Linux alone. The mask is drawn anew
each time, which a model does once for all its layers. `sliding_window` sees the last 256 tokens, the others all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks import machine, save
from tinygpt.attention import SDPA, Kernel, Manual, Mask
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.flex import Flex
from tinygpt.attention.sliding_window import SlidingWindow

H, D = 12, 64
WINDOW = 256
LENGTHS = [2**n for n in range(7, 15)]
KERNELS: dict[str, tuple[Kernel, Mask]] = {
    "manual": (Manual(), Mask()),
    "chunked": (Chunked(), Mask()),
    "sdpa": (SDPA(), Mask()),
    "flex": (Flex(), Mask()),
    "sliding_window": (SlidingWindow(), Mask(window=WINDOW)),
}
MATRICES = 5  # of scores that the manual kernel holds at once, about


def step(name: str, B: int, T: int, backward: bool, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """One forward pass, or forward and backward, on inputs that are made once."""
    kernel, mask = KERNELS[name]
    # As the projections leave them: (B, T, H, D), transposed.
    tensors = [torch.randn(B, T, H, D, device=device, dtype=dtype).transpose(1, 2) for _ in range(4)]
    q, k, v = (x.requires_grad_(backward) for x in tensors[:3])

    def run() -> None:
        out = kernel(q, k, v, replace(mask))  # a mask that nothing is drawn of yet
        if backward:
            torch.autograd.grad(out, (q, k, v), tensors[3])
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def extra_memory(name: str, B: int, T: int, backward: bool, device: str, dtype: torch.dtype) -> int:
    """The peak above the inputs, in bytes, of the first pass in this process."""
    run = step(name, B, T, backward, device, dtype)
    if device == "cuda":
        run()  # compiled kernels have work space of their own, for the first time alone
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # begin the high-water mark anew
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def fits(name: str, B: int, T: int, device: str, dtype: torch.dtype) -> bool:
    """Whether the matrices of the kernel written out have room."""
    if device == "cuda":
        free = torch.cuda.get_device_properties(0).total_memory
    else:
        meminfo = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in meminfo if line.startswith("MemAvailable:"))
    return name != "manual" or MATRICES * B * H * T * T * torch.empty(0, dtype=dtype).element_size() < 0.5 * free


def measure(names: list[str], B: int, T: int, rounds: int, device: str, dtype: torch.dtype) -> list[dict]:
    """All kernels at one size: times in turns, memory in processes of their own."""
    names = [name for name in names if fits(name, B, T, device, dtype)]
    cells = [{"kernel": name, "B": B, "T": T} for name in names]
    for backward in (False, True):
        kind = "forward and backward" if backward else "forward"
        times: list[list[float]] = [[] for _ in names]
        for _ in range(rounds + 1):
            for name, found in zip(names, times, strict=True):
                run = step(name, B, T, backward, device, dtype)
                if device == "cuda":
                    run()  # compiles, for sizes that are new
                start = time.perf_counter()
                run()
                found.append(time.perf_counter() - start)
        for cell, found in zip(cells, times, strict=True):
            cell[f"{kind}, ms"] = 1000 * statistics.median(found[1:])  # the first is of cold memory
            spec = json.dumps([cell["kernel"], B, T, backward, device, str(dtype).removeprefix("torch.")])
            command = [sys.executable, "-m", "benchmarks.attention", "--cell", spec]
            # What is freed goes back at once: else the C library keeps some of it, more or less by chance.
            environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
            process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            cell[f"{kind}, MB"] = int(process.stdout) / 1e6
    for cell in cells:
        numbers = [f"{value:,.1f}" for key, value in cell.items() if key[-2:] in ("ms", "MB")]
        print(f"| {T:,} x {B} | {cell['kernel']} | {' | '.join(numbers)} |", flush=True)
    return cells


def plot(cells: list[dict], file: Path) -> None:
    """Time and memory, forward and backward, along T; both axes logarithmic."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, unit, title in ((axes[0], "ms", "time"), (axes[1], "MB", "memory above the inputs")):
        for name in dict.fromkeys(cell["kernel"] for cell in cells):
            own = [cell for cell in cells if cell["kernel"] == name]
            values = [cell[f"forward and backward, {unit}"] for cell in own]
            axis.plot([cell["T"] for cell in own], values, marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="T, tokens in a row", ylabel=unit)
        axis.set_title(f"forward and backward: {title}")
        axis.set_xticks(LENGTHS, [f"{T:,}" for T in LENGTHS], rotation=45)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.grid(alpha=0.3)
    axes[0].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kernels", nargs="+", choices=KERNELS, help="(default: those that train on the device)")
    p.add_argument("--batch", type=int, default=32, metavar="B", help="of the first table (default: %(default)s)")
    p.add_argument("--tokens", type=int, default=16_384, metavar="N", help="of the second; 0: none (default: 16,384)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    p.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="(default: float32)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the second table as a PNG")
    p.add_argument("--cell", help=argparse.SUPPRESS)  # what a process that measures memory is asked
    args = p.parse_args()
    if args.cell:
        name, B, T, backward, device, dtype = json.loads(args.cell)
        print(extra_memory(name, B, T, backward, device, getattr(torch, dtype)))
        return

    facts = machine("torch") | {"dtype": args.dtype, "heads": H, "head_dim": D, "window": WINDOW}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    kernels = args.kernels or [name for name in KERNELS if name != "flex" or args.device == "cuda"]
    print("; ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")
    print("| T x B | kernel | forward, ms | MB | forward and backward, ms | MB |\n|---|---|---|---|---|---|")
    common = (args.rounds, args.device, getattr(torch, args.dtype))
    first = measure(kernels, args.batch, 512, *common)
    lengths = [T for T in LENGTHS if args.tokens >= T]
    second = [cell for T in lengths for cell in measure(kernels, args.tokens // T, T, *common)]
    if args.plot:
        plot(second, args.plot)
    if args.out:
        save(args.out, facts, at_512=first, by_length=second)


if __name__ == "__main__":
    main()
