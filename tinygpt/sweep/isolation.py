"""A command in a process of its own, so that a trial may be killed, or run out of memory, and its sweep goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tinygpt.signals import SIGNALS


def isolated(command: Sequence[str], line: str) -> int:
    """The exit status of a command, which reads a line from its standard input; a signal as a negative number.

    Signals of SIGNALS that reach this process are handed on to the other one, which is waited for. A terminal's reach
    that not by themselves, or they would come twice.

    Raises:
        SystemExit: a signal stopped both.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    with _handing_on(process) as received:
        with suppress(BrokenPipeError):  # it has died already
            process.stdin.write(line + "\n")
            process.stdin.flush()
        status = process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()
    if received:
        raise SystemExit(128 + received[0])
    return status


@contextmanager
def _handing_on(process: subprocess.Popen) -> Iterator[list[int]]:
    """Signals go to another process; yields the list of those that came."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody listen
        yield received
        return

    def hand_on(number: int, _frame: Any) -> None:
        received.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def line_from_parent() -> str:
    """What `isolated` handed to this process; from now on this one stops, as by SIGTERM, when its parent is gone."""
    line = sys.stdin.readline()
    threading.Thread(target=_follow, daemon=True).start()
    return line


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 1):  # until the end that comes with the other process's
        pass
    os.kill(os.getpid(), signal.SIGTERM)
