import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinygpt.sweep.isolation import isolated

ROOT = Path(__file__).parents[2]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_reads_its_line_and_returns_its_status():
    code = "import sys; from pathlib import Path; Path('read').write_text(sys.stdin.readline()); sys.exit(3)"
    assert isolated(python(code), "a line") == 3
    assert Path("read").read_text() == "a line\n"


def test_a_command_that_is_killed_tells_the_signal():
    assert isolated(python("import os; os.kill(os.getpid(), 9)"), "") == -signal.SIGKILL


# A parent, and its child, which writes what signals it hears.
CHILD = """
import signal, sys, time
from tinygpt.sweep.isolation import line_from_parent

def hear(number, frame):
    print("heard", number, flush=True)
    sys.exit(128 + number)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hear)
print("child", line_from_parent(), end="", flush=True)
time.sleep(60)
"""
PARENT = f"""
import sys
from tinygpt.sweep.isolation import isolated
isolated([sys.executable, "-c", {CHILD!r}], "began")
"""


@pytest.fixture
def parent():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(python(PARENT), env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "child began\n"
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
