"""Sample text from a trained model.

    python generate.py --help

Flags, not Hydra: text and paths arrive byte for byte as the shell passes them.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tinygpt.errors import UserError

Number = TypeVar("Number", int, float)


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


at_least_one = number(int, "a whole number of at least 1", lambda n: n >= 1)
at_least_zero = number(int, "a whole number of at least 0", lambda n: n >= 0)
temperature = number(float, "a number of at least 0", lambda t: 0 <= t < float("inf"))
share = number(float, "above 0 and at most 1", lambda p: 0 < p <= 1)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="generate.py",
        description="Continue a prompt with a trained model. The new text alone goes to stdout, all else to stderr.",
        epilog="A token is drawn after temperature, then top-k, then top-p. A sample ends at the end of a text, or"
        " after --max-new-tokens. The model sees the last block_size tokens.",
    )
    p.add_argument(
        "--checkpoint",
        type=Path,
        metavar="RUN_DIR_OR_CKPT",
        help="a run's directory (its best checkpoint, else its last) or a .ckpt file; the newest run below runs/",
    )
    text = p.add_mutually_exclusive_group()
    text.add_argument("--prompt", default="", metavar="TEXT", help="what to continue; empty starts a new text")
    text.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a file, or from stdin: -")
    p.add_argument("--max-new-tokens", type=at_least_one, default=500, metavar="N", help="(default: %(default)s)")
    p.add_argument("--num-samples", type=at_least_one, default=1, metavar="K", help="(default: %(default)s)")
    p.add_argument(
        "--temperature", type=temperature, default=0.8, metavar="T", help="0 takes the likeliest (default: %(default)s)"
    )
    p.add_argument("--top-k", type=at_least_one, metavar="K", help="draw from the K likeliest tokens alone")
    p.add_argument(
        "--top-p", type=share, default=1.0, metavar="P", help="draw from the likeliest tokens that together reach P"
    )
    p.add_argument("--seed", type=at_least_zero, default=0, metavar="S", help="same seed, same text (default: 0)")
    p.add_argument("--no-cache", action="store_true", help="compute the whole window for every token: slow, same text")
    p.add_argument(
        "--unknown",
        choices=["error", "skip", "replace"],
        default="error",
        help="what becomes of prompt characters that the model does not know (default: error)",
    )
    p.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda", "mps"],
        default="auto",
        help="where the model runs (default: a GPU where there is one)",
    )
    return p


def read_prompt(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise UserError(f"--prompt-file {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--prompt-file {name} is not UTF-8 text: a wrong byte at offset {error.start}") from error


def main() -> None:
    args = parser().parse_args()
    prompt = read_prompt(args.prompt_file) if args.prompt_file is not None else args.prompt

    import tinygpt

    gpt = tinygpt.load(args.checkpoint, device=args.device, unknown=args.unknown)
    texts = gpt.samples(
        prompt,
        num_samples=args.num_samples,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        use_cache=not args.no_cache,
    )
    for i, text in enumerate(texts):
        if len(texts) > 1:
            print(f"--- {i + 1}/{len(texts)} ---", file=sys.stderr, flush=True)
        print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # whoever read the text has had enough
        sys.stderr.close()
    except (UserError, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"generate.py: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        sys.exit(130)
