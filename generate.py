"""Sample text from a trained model.

    python generate.py --help

Flags, not Hydra: text and paths arrive byte for byte as the shell passes them.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinygpt import flags
from tinygpt.errors import UserError, one_line

if TYPE_CHECKING:
    from tinygpt.generation.text import TextGenerator


def parser() -> argparse.ArgumentParser:
    p = flags.Parser(
        prog="generate.py",
        description="Continue a prompt with a trained model. The new text alone goes to stdout, all else to stderr.",
        epilog="A token is drawn after the repetition, presence and frequency penalties, no-repeat-ngram, the logit"
        " biases, temperature, top-k, top-p and min-p, in this order; each does nothing by default. A sample ends at a"
        " stop, at the end of a text, or after --max-new-tokens.",
    )
    p.add_argument(
        "--checkpoint",
        type=Path,
        metavar="RUN_DIR_OR_CKPT",
        help="a run's directory (its best checkpoint, else its last) or a .ckpt file (default: the newest run's)",
    )
    text = p.add_mutually_exclusive_group()
    text.add_argument("--prompt", default="", metavar="TEXT", help="what to continue; empty starts a new text")
    text.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a file, or from stdin: -")
    text.add_argument(
        "--prompts-file", metavar="FILE", help="many prompts, one a line, continued together; or stdin: -"
    )
    text.add_argument(
        "--interactive", action="store_true", help="write a text in turns with the model; /help helps there"
    )
    text.add_argument(
        "--score", metavar="FILE", help="say how well the model foretells a text, or stdin: -, and sample nothing"
    )
    p.add_argument("--max-new-tokens", type=flags.at_least_one, default=500, metavar="N", help="(default: %(default)s)")
    p.add_argument("--num-samples", type=flags.at_least_one, default=1, metavar="K", help="(default: %(default)s)")
    p.add_argument(
        "--temperature",
        type=flags.temperature,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest (default: %(default)s)",
    )
    p.add_argument("--top-k", type=flags.at_least_one, metavar="K", help="draw from the K likeliest tokens alone")
    p.add_argument(
        "--top-p",
        type=flags.share,
        default=1.0,
        metavar="P",
        help="draw from the likeliest tokens that together reach P",
    )
    p.add_argument(
        "--min-p",
        type=flags.at_most_one,
        default=0.0,
        metavar="P",
        help="draw from tokens at least P times as likely as the top",
    )
    p.add_argument(
        "--repetition-penalty",
        type=flags.above_zero,
        default=1.0,
        metavar="R",
        help="above 1: repeat less, the prompt included",
    )
    p.add_argument(
        "--presence-penalty",
        type=flags.finite,
        default=0.0,
        metavar="A",
        help="subtracted from the logits of tokens that were drawn already",
    )
    p.add_argument(
        "--frequency-penalty", type=flags.finite, default=0.0, metavar="A", help="the same, for each time that one was"
    )
    p.add_argument("--no-repeat-ngram", type=flags.at_least_one, metavar="N", help="never say N tokens a second time")
    again: dict[str, Any] = {"action": "append", "default": []}
    p.add_argument(
        "--logit-bias", type=flags.bias, metavar="ID=VALUE", help="added to a token's logit (may be repeated)", **again
    )
    p.add_argument(
        "--stop", type=flags.stop, metavar="TEXT", help="end a sample before this text (may be repeated)", **again
    )
    p.add_argument(
        "--stop-escaped",
        nargs="?",
        type=flags.escaped_stop,
        metavar="TEXT",
        help=r"the same, with \n and other escapes; without TEXT: each --stop has escapes",
        **again,
    )
    p.add_argument(
        "--stop-id", type=flags.at_least_zero, metavar="ID", help="end at this token (may be repeated)", **again
    )
    p.add_argument(
        "--overflow",
        choices=["shift", "crop", "stop"],
        default="shift",
        help="past block_size: drop the oldest half, or the oldest token each time (slow), or end (default: shift)",
    )
    p.add_argument("--stream", action="store_true", help="show the text as it comes")
    p.add_argument(
        "--json", action="store_true", help="an object a sample and a line, instead of the text, when it has ended"
    )
    p.add_argument("--logprobs", type=flags.at_least_zero, metavar="N", help="with --json: the N likeliest tokens too")
    p.add_argument(
        "--compile",
        action="store_true",
        help="capture the step of one token first: takes half a minute and a C++ compiler; then small models are up to"
        " twice as fast",
    )
    p.add_argument("--quantize", choices=["int8"], help="weights of 8 bits in all linear layers: smaller, slower")
    p.add_argument(
        "--seed",
        type=flags.at_least_zero,
        default=0,
        metavar="S",
        help="same seed, same text, whatever is sampled beside it (default: 0)",
    )
    p.add_argument("--no-cache", action="store_true", help="compute all that is seen for every token: slow, same text")
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


def read(option: str, name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig").replace("\r\n", "\n")  # as a text to train on is read
    except OSError as error:
        raise UserError(f"{option} {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {name} is not UTF-8 text: a wrong byte at offset {error.start}") from error


def read_prompts(args: argparse.Namespace) -> list[str]:
    if args.prompts_file is not None:
        prompts = read("--prompts-file", args.prompts_file).removesuffix("\n").split("\n")
        if prompts == [""]:
            raise UserError(f"--prompts-file {args.prompts_file} has no line")
        return prompts
    return [read("--prompt-file", args.prompt_file) if args.prompt_file is not None else args.prompt]


def load(args: argparse.Namespace) -> "TextGenerator":
    import tinygpt

    gpt = tinygpt.load(args.checkpoint, device=args.device, unknown=args.unknown)
    if args.quantize:
        from tinygpt.model.int8 import quantize

        before, after = quantize(gpt.model)
        print(f"int8: the weights take {after / 1e6:.2f} MB instead of {before / 1e6:.2f}", file=sys.stderr)
    return gpt


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.logprobs is not None and not args.json:
        p.error("--logprobs needs --json")
    if args.compile and args.no_cache:
        p.error("--compile needs the cache; leave out --no-cache")
    if args.score is not None:
        text = read("--score", args.score)

        from tinygpt.generation import terminal

        terminal.print_score(load(args), text, args.json)
        return
    if None in args.stop_escaped:
        try:
            args.stop = [flags.escaped_stop(stop) for stop in args.stop]
        except argparse.ArgumentTypeError as error:
            p.error(f"argument --stop: {error}")
    prompts = read_prompts(args)

    from tinygpt.generation import terminal

    gpt = load(args)
    settings = {
        "max_new_tokens": args.max_new_tokens,
        "stop": [*args.stop, *(text for text in args.stop_escaped if text is not None)],
        "stop_ids": args.stop_id,
        "overflow": args.overflow,
        "seed": args.seed,
        "use_cache": not args.no_cache,
        "compiled": args.compile,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
        "presence_penalty": args.presence_penalty,
        "frequency_penalty": args.frequency_penalty,
        "no_repeat_ngram": args.no_repeat_ngram,
        "logit_bias": dict(args.logit_bias),
    }
    if args.interactive:
        terminal.talk(gpt, settings)
        return
    n_top = (args.logprobs or 0) if args.json else None
    pieces = gpt.stream(prompts, num_samples=args.num_samples, n_top=n_top, **settings)
    terminal.show(pieces, len(prompts) * args.num_samples, stream=args.stream and not args.json, as_json=args.json)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # whoever read the text has had enough
        sys.stderr.close()
    except (UserError, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"generate.py: {one_line(error)}")
    except KeyboardInterrupt:
        sys.exit(130)
