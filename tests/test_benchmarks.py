"""Every benchmark can be asked for help; what they measure is not a test's business."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_how_it_is_run(name: str):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"python -m benchmarks.{name}" in result.stdout
