"""Which device there is, what it is called and good at, how much memory it has, and what random numbers it draws."""

import contextlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def device(name: str) -> str:
    """The kind of device, "cpu", "cuda" or "mps": "auto" and "gpu" become what there is.

    Raises:
        ValueError: there is no such device, or none here.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in ("auto", "gpu", *here):
        raise ValueError(f"the device must be auto, cpu, gpu, cuda or mps, got {name!r}")
    if name == "gpu":
        here.pop("cpu")
    found = [kind for kind, is_here in here.items() if is_here and name in ("auto", "gpu", kind)]
    if not found:
        raise ValueError(f"there is no {name} here; auto takes what there is")
    return found[0]


def name(device: str) -> str:
    """Of the processor or the GPU, as it calls itself."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# From this width of a model on, mixed precision is faster on a CPU that has bf16 arithmetic; below, conversions take
# more time than it saves.
WIDE = 384


def precision(name: str | int, device: str, width: int) -> str:
    """`auto` becomes bf16-mixed where that is faster, else 32-true; other names stay.

    It is faster where the hardware has bf16 arithmetic of its own: on a GPU always, on a CPU in models of this width.

    Raises:
        ValueError: fp16 on a CPU: Lightning would train in bf16 instead, and say so in a warning alone.
    """
    name = str(name)
    if name in ("16", "16-mixed", "16-true") and device == "cpu":
        raise ValueError(f"precision={name} needs a GPU; on a CPU use auto, 32-true or bf16-mixed")
    if name != "auto":
        return name
    return "bf16-mixed" if has_bf16(device) and (device != "cpu" or width >= WIDE) else "32-true"


@cache
def has_bf16(device: str) -> bool:
    """Whether this kind of device computes in bfloat16 by itself, and not by way of fp32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":  # without one of these a CPU converts to fp32 and back around every operation
        cpuinfo = Path("/proc/cpuinfo")
        flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False


# Dense products with 16-bit inputs, in TFLOP/s, by how a GPU's name ends; another of the same generation is another
# GPU. Source: NVIDIA's data sheets.
PEAKS = {
    "H200": 989,
    "H100 80GB HBM3": 989,
    "H100 PCIe": 756,
    "A100.*": 312,
    "L40S": 362,
    "L4": 121,
    "RTX 4090": 165,
    "T4": 65,
}
SIDE = 1024  # of the matrices that a CPU is measured with


def peak_flops(device: str, precision: str) -> float | None:
    """The most floating-point operations a second: measured for a CPU, known for some GPUs in 16 bits, else None."""
    if device == "cuda" and precision.startswith(("16", "bf16")):
        found = [peak for name, peak in PEAKS.items() if re.search(rf"\b{name}$", torch.cuda.get_device_name())]
        return found[0] * 1e12 if found else None
    if device != "cpu":
        return None
    a = torch.ones(SIDE, SIDE, dtype=torch.bfloat16 if precision.startswith("bf16") else torch.float32)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, a)
        seconds.append(time.perf_counter() - start)
    return 2 * SIDE**3 / min(seconds)


def memory(device: str) -> int | None:
    """Bytes that a process on this device can have; None where nobody says."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]  # free of others
    if device == "mps":
        return torch.mps.recommended_max_memory()
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    with contextlib.suppress(ImportError, OSError):  # Windows has no limits of this kind, macOS no such file
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:  # of addresses, which libraries take too
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limits.append(soft - taken)
    return min(limits, default=None)


def peak_memory(device: str) -> float:
    """The most bytes that this process has held, on a CUDA GPU where it computes there; NaN where nobody says."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak_memory(device: str) -> None:
    """Begin anew to look for the most bytes, where that can be."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def random_states(device: str) -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """How to read and write the state of the random numbers that a run on this device draws, by kind of device."""
    states: dict[str, Any] = {"cpu": (torch.get_rng_state, torch.set_rng_state)}
    if device in ("cuda", "mps"):
        module = getattr(torch, device)
        states[device] = (module.get_rng_state, module.set_rng_state)
    return states


@contextlib.contextmanager
def same_random_states(device: str) -> Iterator[None]:
    """Give the states back at the end, so that what is tried in between changes nothing that is drawn later."""
    before = [(restore, get()) for get, restore in random_states(device).values()]
    try:
        yield
    finally:
        for restore, state in before:
            restore(state)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one of the many that say so."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "invalid buffer size", "alloc_failed")
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in message for word in words)
