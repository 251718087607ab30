"""Measurements, each a module to run: `python -m benchmarks.NAME`. What they gave is in LOG.md and results/."""

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from tinygpt import hardware

REPOSITORY = Path(__file__).resolve().parents[1]


def machine(*packages: str) -> dict[str, str | int | float]:
    """What a result depends on: processor, usable cores, GiB of memory, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": hardware.name("cpu"),
        "cores": hardware.cores(),
        "memory_gib": round(memory, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def trained(*words: str, threads: int | None = None) -> dict[str, Any]:
    """Run `train.py` with these words, in a directory that is gone afterwards; its summary, and its model's keys."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, REPOSITORY / "train.py", *words, f"run_dir={folder}/run"]
        environment = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
        config = yaml.safe_load((Path(folder) / "run" / "config.yaml").read_text())
    del summary["checkpoint"]  # a path in that directory
    return summary | {"model": config["model"]}


def save(file: Path, facts: dict[str, str | int | float], **results: object) -> None:
    """Write results as JSON, with the command, the day and the machine that they are of.

    A path that only this machine has is written as what it names.
    """
    module = Path(sys.argv[0]).stem
    words = []
    for word in sys.argv[1:]:
        name, equals, value = word.rpartition("=")
        if Path(value).is_absolute():
            value = "FOLDER" if Path(value).is_dir() else "FILE"
        words.append(name + equals + value)
    content = {
        "command": f"python -m benchmarks.{module} {shlex.join(words)}".strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": facts,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | results, indent=1) + "\n", encoding="utf-8")
