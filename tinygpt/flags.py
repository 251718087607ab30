"""Command lines of plain flags, and what their values may be."""

import argparse
import ast
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """One that names a mistake in one line, and leaves the list of all flags to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; --help explains all flags\n")


def number(kind: Callable[[str], Number], rule: str, allowed: Callable[[Number], bool]) -> Callable[[str], Number]:
    """An argparse type: a number of this kind, within the rule."""

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
        return value

    return parse


finite = number(float, "a finite number", lambda x: abs(x) < float("inf"))
above_zero = number(float, "a finite number above 0", lambda x: 0 < x < float("inf"))
at_most_one = number(float, "at least 0 and at most 1", lambda p: 0 <= p <= 1)
at_least_one = number(int, "a whole number of at least 1", lambda n: n >= 1)
at_least_zero = number(int, "a whole number of at least 0", lambda n: n >= 0)
temperature = number(float, "a number of at least 0", lambda t: 0 <= t < float("inf"))
share = number(float, "above 0 and at most 1", lambda p: 0 < p <= 1)


def bias(text: str) -> tuple[int, float]:
    """An argparse type: ID=VALUE."""
    token, _, value = text.partition("=")
    try:
        if float(value) < float("inf"):
            return int(token), float(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be ID=VALUE, such as 12=1.5 or 12=-inf, got {text!r}")


def escaped(text: str) -> str:
    r"""The text with \n, \t, \u00e9 and their like as the characters that they stand for."""
    try:
        return re.sub(r"\\(?:[abfnrtv\\'\"]|x..|u.{4}|U.{8}|[0-7]{1,3})", lambda m: ast.literal_eval(f"'{m[0]}'"), text)
    except SyntaxError:
        raise argparse.ArgumentTypeError(f"has a wrong escape, got {text}; right ones are \\n, \\t, \\xe9") from None


def stop(text: str) -> str:
    """An argparse type: a text that ends a sample."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def escaped_stop(text: str) -> str:
    """An argparse type: the same, written with escapes."""
    return stop(escaped(text))
