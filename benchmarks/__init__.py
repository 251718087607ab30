"""Measurements, each a module to run: python -m benchmarks.NAME. What they gave is in LOG.md and results/."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """CPU model, cores, memory and versions, for the head of a table."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "datasets", "tokenizers"))
    return (
        f"{models[0].split(': ')[1]}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}, {versions}"
    )
