"""What a person sees while a run goes on."""

import io
import re
import sys

import pytest

from tests.conftest import TINY


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_and_each_validation_stays_above_it(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    assert command(*TINY)[0] == 0
    shown = sys.stdout.getvalue()
    bars = [part for part in shown.replace("\r", "\n").split("\n") if "% " in part and "left" in part]
    assert any(bar.startswith(" 67% ") and " step 4/6  loss " in bar for bar in bars)
    assert not any(", step" in bar for bar in bars)
    for step in ("4/6", "6/6"):
        assert shown.count(f"step {step}  validation loss") == 1
    assert "\x1b" not in shown  # no colours, and so none to turn off by NO_COLOR
    assert re.search(r"left\r +\r\nbest validation loss", shown)  # the bar is gone


def test_a_file_has_plain_lines(command):
    _, out, _ = command(*TINY)
    assert "\r" not in out
    assert [
        line.split("  ")[0] for line in out.splitlines() if "validation loss" in line and line.startswith("step")
    ] == [
        "step 4/6",
        "step 6/6",
    ]
