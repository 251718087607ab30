import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinygpt.sweep.isolation import DiedError, isolated

ROOT = Path(__file__).parents[2]


def pid_and_sum(*numbers: int) -> tuple[int, int]:
    return os.getpid(), sum(numbers)


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(status: int) -> None:
    sys.exit(status)


def test_a_function_runs_in_a_process_of_its_own():
    pid, total = isolated(pid_and_sum, 1, 2)
    assert total == 3
    assert pid != os.getpid()


def test_a_process_that_is_killed_is_an_error_that_names_the_signal():
    with pytest.raises(DiedError, match="killed by SIGKILL") as died:
        isolated(die, signal.SIGKILL)
    assert died.value.status == -signal.SIGKILL


def test_a_process_that_leaves_is_an_error_too():
    with pytest.raises(DiedError, match="ended with status 3"):
        isolated(leave, 3)


# A parent that writes the pid of its child, which writes what signals it hears.
SCRIPT = """
import os, signal, sys, time
from tinygpt.sweep.isolation import isolated

def child():
    def hear(number, frame):
        print("heard", number, flush=True)
        sys.exit(128 + number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    print("child", os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    isolated(child)
"""


@pytest.fixture
def parent():
    Path("parent.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "parent.py"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("child ")
    yield process
    process.kill()
    process.stdout.close()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_once_and_ends_both(parent, number: int):
    parent.send_signal(number)
    assert parent.stdout.read() == f"heard {int(number)}\n"
    assert parent.wait(timeout=60) == 128 + number


def test_a_process_stops_when_its_parent_is_killed(parent):
    parent.kill()
    assert parent.stdout.read() == f"heard {int(signal.SIGTERM)}\n"  # the end of the file: the child is gone too
