"""What generate.py shows: samples in their order, a text in turns, a score."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from tinygpt.errors import UserError
from tinygpt.generation.interactive import Session
from tinygpt.generation.text import Piece, Sample, TextGenerator


def print_score(gpt: TextGenerator, text: str, as_json: bool) -> None:
    """Windows end to end, as in validation; and windows that overlap by half."""
    size = gpt.model.block_size
    stride = max(1, size // 2)
    whole, sliding = gpt.score(text), gpt.score(text, stride)
    if as_json:
        protocol = f"windows of {size} tokens, end to end"
        print(json.dumps(whole._asdict() | {"protocol": protocol, "sliding": sliding._asdict() | {"stride": stride}}))
        return
    for name, found in ((f"windows of {size} tokens, end to end", whole), (f"sliding by {stride} tokens", sliding)):
        bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits per byte"
        print(f"{name}: loss {found.loss:.4f} nats a token, perplexity {found.perplexity:.3f}{bits}")


def talk(gpt: TextGenerator, settings: dict[str, Any]) -> None:
    """Read lines and answer them, until their end; Ctrl-C ends an answer, and without one everything."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` its history and its keys

    session = Session(gpt, settings)
    print("write a line; /help names what else there is", file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = input()
        except EOFError:
            print(file=sys.stderr)
            return
        shown = False
        try:
            for text in session.answer(line):
                print(text, end="", flush=True)
                shown |= bool(text)
        except UserError as error:
            print(f"generate.py: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            pass
        if shown:
            print(flush=True)


def show(pieces: Iterator[Piece], n: int, *, stream: bool, as_json: bool) -> None:
    """Samples in their order: whole, as objects, or as they come; after Ctrl-C or an error what there is of them."""
    waiting = [""] * n  # text that is not shown yet
    samples: dict[int, Sample] = {}
    current, begun = 0, -1

    def put(i: int, end: bool) -> None:
        nonlocal begun
        if n > 1 and begun < i and not as_json:
            print(f"--- {i + 1}/{n} ---", file=sys.stderr, flush=True)
        begun = i
        if as_json:
            print(json.dumps(vars(samples[i])), flush=True)
        else:
            print(waiting[i], end="\n" if end else "", flush=True)
            waiting[i] = ""

    try:
        for number, text, samples[number] in pieces:
            waiting[number] += text
            while current in samples and (stream or samples[current].finish_reason):
                ended = samples[current].finish_reason is not None
                put(current, ended)
                if not ended:
                    break
                current += 1
    except (KeyboardInterrupt, ValueError):
        for i in range(current, n):
            if i in samples:
                put(i, end=True)
        raise
