"""A text that the user and the model write in turns."""

import io
import sys
from pathlib import Path

import pytest

import tinygpt
from tinygpt.errors import UserError
from tinygpt.generation.interactive import Session


def test_a_text_is_written_in_turns(generate_py, run_dir: Path, monkeypatch):
    lines = "abc\n/temperature 0\n/nothing 3\n/seed x\n/top_p 7\n/seed -1\n/max_new_tokens 0\n/reset\n"
    lines += "de\n/top_p\nde\n/settings\n/help\n/reset\né\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    out, err = generate_py("--interactive", "--max-new-tokens", "5", "--seed", "3")
    gpt = tinygpt.load(run_dir)
    first = gpt.generate("abc", max_new_tokens=5, seed=3)
    again = gpt.generate("de", max_new_tokens=5, seed=3, temperature=0)
    shown = out.splitlines()
    assert shown[0] == first
    assert shown[1] == again
    assert "temperature 0.0" in shown
    assert "max_new_tokens 5" in shown
    assert "/reset      forget the text so far" in shown
    for message in (
        "there is no /nothing; /help names what there is",
        "/seed must be a whole number, got 'x'",
        "/top_p must be above 0 and at most 1, got 7.0",
        "/seed must be at least 0, got -1",
        "/max_new_tokens must be at least 1, got 0",
        "'é' is not in the vocabulary of 9 characters",
    ):
        assert f"generate.py: {message}" in err


def test_the_text_so_far_is_what_is_continued(run_dir: Path):
    session = Session(tinygpt.load(run_dir), {"max_new_tokens": 3})
    shown = "".join(session.answer("abc"))
    assert session.text == f"abc{shown}"
    with pytest.raises(UserError, match=r"'\\n' is not in the vocabulary"):
        list(session.answer("de"))
    assert session.text == f"abc{shown}"
