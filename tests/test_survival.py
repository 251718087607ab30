"""SIGKILL at any moment of a real training process: `python -m benchmarks.survival`, three times."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_run_that_is_killed_and_gone_on_with_equals_one_left_alone():
    words = ["--kills", "3", "--seed", "5", "trainer.max_steps=60", "data.num_workers=1", "data.layout=packed"]
    command = [sys.executable, "-m", "benchmarks.survival", *words]
    finished = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "3 of 3 equal" in finished.stdout
