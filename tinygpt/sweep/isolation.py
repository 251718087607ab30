"""A function in a process of its own, so that a trial may be killed, or run out of memory, and the sweep goes on."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tinygpt.signals import SIGNALS

Result = TypeVar("Result")


class DiedError(Exception):
    """The process ended without a result.

    Attributes:
        status: its exit status; a signal that ended it as a negative number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}")
        self.status = status


def isolated(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns that is called in another process.

    Signals of SIGNALS that reach this process are handed on to the other one, which is waited for; it hears none from
    the terminal by itself, and stops, as by SIGTERM, when this process is gone.

    Raises:
        DiedError: there is no result.
        SystemExit: a signal stopped both.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, arguments))
    process.start()
    sender.close()
    with _handing_on(process) as received, receiver:
        try:
            result = receiver.recv()
        except EOFError:
            result = None
        process.join()
    if received:
        raise SystemExit(128 + received[0])
    if result is None:
        assert process.exitcode is not None
        raise DiedError(process.exitcode)
    return result[0]


@contextmanager
def _handing_on(process: BaseProcess) -> Iterator[list[int]]:
    """Signals go to another process; yields the list of those that came."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody listen
        yield received
        return

    def hand_on(number: int, _frame: Any) -> None:
        received.append(number)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)

    before = {number: signal.signal(number, hand_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _call(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C would come twice
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    try:
        sender.send((function(*arguments),))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _follow(sentinel: int) -> None:
    """Stop this process when its parent is gone."""
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
