"""How fast tokens come: with the cache, compiled, without, and from `transformers` on the same weights, in turns.

    python -m benchmarks.generate
    python -m benchmarks.generate --sizes 0.8M --batches 1 --contexts 32 --rounds 1
    python -m benchmarks.generate --device cuda --dtype bfloat16

GPT-2 models with 65 tokens in their vocabulary, fresh weights, sampling at temperature 1. For each size, batch and
context (tokens in the prompt): milliseconds to the first token, the median of milliseconds a token after it, and tokens
a second of all rows together after the first. The limit is the bytes of weights and cache that a token must read, over
the rate at which so many bytes are read in the same run; at batch 64 also the floating-point operations over the rate
of a matrix product. `share` is how much of it is reached. At the end, a model whose layers have a window of 64: what a
token costs after few and after many.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import machine, save
from tinygpt.generation.decoding import Decoder
from tinygpt.interop.huggingface import save_folder
from tinygpt.model import GPT, GPT2, Modern

SIZES = {"0.8M": (4, 4, 128), "10.7M": (6, 6, 384)}  # layers, heads, width
VOCABULARY = 65
WINDOW, MANY = 64, 1000

Times = tuple[float, list[float]]  # seconds to the first token, and those of each token after it


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(model: GPT, prompts: list[list[int]], n: int, *, use_cache: bool = True, compiled: bool = False) -> Times:
    start = time.perf_counter()
    decoder = Decoder(model, prompts, max_new_tokens=n, use_cache=use_cache, compiled=compiled)
    decoder.step()
    marks = [time.perf_counter()]
    for _ in range(n - 1):
        decoder.step()
        marks.append(time.perf_counter())
    return marks[0] - start, [b - a for a, b in pairwise(marks)]


def theirs(model: torch.nn.Module, prompts: list[list[int]], n: int) -> Times:
    """`generate`, whose tokens are clocked as they are streamed to a sampler of its own kind."""
    from transformers import LogitsProcessor, LogitsProcessorList

    marks: list[float] = []

    class Clock(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
            synchronize(scores.device)
            marks.append(time.perf_counter())
            return scores

    ids = torch.tensor(prompts, device=next(model.parameters()).device)
    start = time.perf_counter()
    model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=n,
        min_new_tokens=n,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([Clock()]),
    )
    return marks[0] - start, [b - a for a, b in pairwise(marks)]


def seconds(run: Callable[[], Tensor], turns: int) -> float:
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        synchronize(run().device)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def read_rate(n_bytes: int, like: Tensor) -> float:
    """Bytes a second at which so many are read, again and again."""
    return n_bytes / seconds(like.new_ones(n_bytes // like.element_size()).sum, 20)


def matrix_rate(like: Tensor) -> float:
    """Floating-point operations a second of a large matrix product."""
    n = 1024 if like.device.type == "cpu" else 8192
    a = torch.randn(n, n).to(like)
    return 2 * n**3 / seconds(lambda: a @ a, 10)


def limit(model: GPT, batch: int, context: int) -> float:
    """Seconds that a token of every row takes at the least."""
    config = model.config
    like = model.head.weight
    cache = 2 * config["n_layer"] * config["n_embd"] * context * batch
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    n_bytes = (weights + cache) * like.element_size()
    reading = n_bytes / read_rate(n_bytes, like)
    if batch < 64:
        return reading
    flops = 2 * batch * (weights + 2 * config["n_layer"] * config["n_embd"] * context)
    return max(reading, flops / matrix_rate(like))


def windowed() -> tuple[float, float]:
    """Milliseconds a token of a windowed model, of the 11th to the 60th and of the last 50 of many, in turns."""
    model = Modern(vocab_size=VOCABULARY, block_size=256, n_layer=4, n_head=4, n_embd=128, window=WINDOW).eval()
    decoders = [Decoder(model, [[0]], max_new_tokens=MANY) for _ in range(2)]
    for decoder, n in zip(decoders, (10, MANY - 50), strict=True):
        for _ in range(n):
            decoder.step()
    found: list[list[float]] = [[], []]
    for _ in range(50):
        for decoder, times in zip(decoders, found, strict=True):
            start = time.perf_counter()
            decoder.step()
            times.append(time.perf_counter() - start)
    return 1000 * statistics.median(found[0]), 1000 * statistics.median(found[1])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="(default: all)")
    p.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64], metavar="B", help="(default: 1 8 64)")
    p.add_argument(
        "--contexts", nargs="+", type=int, default=[32, 256, 1024], metavar="T", help="(default: 32 256 1024)"
    )
    p.add_argument("--tokens", type=int, default=64, metavar="N", help="new ones (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: %(default)s)")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="(default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    args = p.parse_args()

    from transformers import AutoModelForCausalLM

    facts = machine("torch", "transformers") | {"dtype": args.dtype, "vocabulary": VOCABULARY}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    to = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    print("; ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")
    print(
        "| size | B | context | who | first, ms | a token, ms | tokens/s | share |\n|---|---|---|---|---|---|---|---|"
    )
    cells = []
    for size in args.sizes:
        n_layer, n_head, n_embd = SIZES[size]
        for context in args.contexts:
            block_size = context + args.tokens
            model = GPT2(vocab_size=VOCABULARY, block_size=block_size, n_layer=n_layer, n_head=n_head, n_embd=n_embd)
            model.eval().to(**to)
            with tempfile.TemporaryDirectory() as folder:
                save_folder(model, folder)
                peer = AutoModelForCausalLM.from_pretrained(folder).eval().to(**to)
            for batch in args.batches:
                prompts = torch.randint(VOCABULARY, (batch, context)).tolist()
                few = max(2, min(args.tokens, 2**14 // (batch * context)))  # without the cache one takes long
                who: dict[str, Callable[[], Times]] = {
                    "cached": partial(ours, model, prompts, args.tokens),
                    "compiled": partial(ours, model, prompts, args.tokens, compiled=True),
                    "uncached": partial(ours, model, prompts, few, use_cache=False),
                    "transformers": partial(theirs, peer, prompts, args.tokens),
                }
                torch.compiler.reset()  # which goes on without compiling after a few sizes
                found: dict[str, list[Times]] = {name: [] for name in who}
                for _ in range(args.rounds + 1):
                    for name, run in who.items():
                        found[name].append(run())
                for name, times in found.items():
                    first = statistics.median(t[0] for t in times[1:])  # the first turn is of cold memory
                    token = statistics.median(s for t in times[1:] for s in t[1])
                    cell = {"size": size, "B": batch, "context": context, "who": name, "first_ms": 1000 * first}
                    cell |= {"token_ms": 1000 * token, "tokens_per_second": batch / token}
                    share = ""
                    if name in ("cached", "compiled"):
                        cell["share"] = limit(model, batch, context) / token
                        share = f"{cell['share']:.0%}"
                    cells.append(cell)
                    print(
                        f"| {size} | {batch} | {context:,} | {name} | {1000 * first:,.2f} | {1000 * token:,.2f} |"
                        f" {batch / token:,.0f} | {share} |",
                        flush=True,
                    )
    early, late = windowed()
    print(f"\nwindow {WINDOW}: {early:.2f} ms a token up to the 60th, {late:.2f} ms up to the {MANY:,}th")
    if args.out:
        save(args.out, facts, cells=cells, window={"early_ms": early, "late_ms": late})


if __name__ == "__main__":
    main()
