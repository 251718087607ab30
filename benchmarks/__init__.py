"""Measurements, each a module to run: `python -m benchmarks.NAME`. What they gave is in LOG.md and results/."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def machine(*packages: str) -> dict[str, str | int | float]:
    """What a result depends on: processor, usable cores, GiB of memory, versions."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    names = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(memory, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def save(file: Path, facts: dict[str, str | int | float], **results: object) -> None:
    """Write results as JSON, with the command, the day and the machine that they are of.

    A path that only this machine has is written as what it names.
    """
    module = Path(sys.argv[0]).stem
    words = [("FOLDER" if Path(w).is_dir() else "FILE") if Path(w).is_absolute() else w for w in sys.argv[1:]]
    content = {
        "command": f"python -m benchmarks.{module} {shlex.join(words)}".strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": facts,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | results, indent=1) + "\n", encoding="utf-8")
