"""Both families with every tokenizer on two corpora, the same FLOPs each: which is the best default?

    python -m benchmarks.families --shakespeare FOLDER --out benchmarks/results/families.json

Each entry is a `train.py` with its defaults, only as many steps as the FLOPs allow, validated once, after the last
step, on as much text whatever the tokenizer. FOLDER is a local copy of tiny_shakespeare; without it the Hub is asked.
What is in FILE already is not run again. --time adds what a step takes, all of them taking turns; run that on a
machine that does nothing else.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import torch
from datasets import disable_progress_bars

from benchmarks import machine, save, trained
from tinygpt.data.corpus import Splits, texts
from tinygpt.data.hub import Hub
from tinygpt.data.python_stdlib import PythonStdlib
from tinygpt.model import GPT, GPT2, Modern, next_token_loss
from tinygpt.optim.adamw import adamw
from tinygpt.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer

FAMILIES: dict[str, Callable[..., GPT]] = {"gpt2": GPT2, "modern": Modern}
TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "char": partial(CharTokenizer.train, unknown="replace"),
    "byte": ByteTokenizer.train,
    "bpe tokenizer.vocab_size=512": partial(BPETokenizer.train, vocab_size=512),
    "bpe tokenizer.vocab_size=2048": partial(BPETokenizer.train, vocab_size=2048),
}
BATCH, BLOCK = 16, 128  # the defaults
VAL_BYTES = 250_000  # of text to validate on, at most
TIMED_STEPS, ROUNDS = 10, 3


def corpora(shakespeare: str) -> dict[str, tuple[str, Splits]]:
    """What train.py calls them, and their documents."""
    hub = Hub(path=shakespeare, val_split="validation+test")
    return {
        "tiny_shakespeare": (f"data=tiny_shakespeare data.path={shakespeare}", hub.splits()),
        "python_stdlib": ("data=python_stdlib", PythonStdlib().splits()),
    }


def facts(splits: Splits, train: Callable[..., Tokenizer]) -> dict[str, float]:
    """The size of the vocabulary and the bytes of validation text behind a token."""
    tokenizer = train(texts(splits.train))
    validation = list(texts(splits.validation))
    n_bytes = sum(len(text.encode()) for text in validation)
    return {
        "vocab_size": tokenizer.vocab_size,
        "bytes_per_token": n_bytes / sum(len(tokenizer.encode(text)) for text in validation),
    }


def seconds_per_step(models: dict[str, GPT]) -> dict[str, float]:
    """What an optimizer step takes, the median of rounds in which all take turns."""
    optimizers = {name: adamw(model) for name, model in models.items()}
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            ids = torch.randint(model.token_embedding.num_embeddings, (BATCH, BLOCK + 1))
            for i in range(TIMED_STEPS + 2):
                if i == 2:
                    start = time.perf_counter()
                next_token_loss(model(ids[:, :-1]), ids[:, 1:]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].step()
                optimizers[name].zero_grad(set_to_none=True)
            found[name].append((time.perf_counter() - start) / TIMED_STEPS)
    return {name: statistics.median(times) for name, times in found.items()}


def table(runs: list[dict]) -> str:
    """The runs as Markdown, a row for both seeds."""
    columns = [
        "corpus",
        "family",
        "tokenizer",
        "bits per byte, by seed",
        "parameters",
        "bytes a token",
        "tokens",
        "seconds",
    ]
    lines = [columns, ["---"] * len(columns)]
    for key in dict.fromkeys((r["corpus"], r["family"], r["tokenizer"]) for r in runs):
        group = sorted((r for r in runs if (r["corpus"], r["family"], r["tokenizer"]) == key), key=lambda r: r["seed"])
        first = group[0]
        lines.append(
            [
                *(word.replace("tokenizer.vocab_size=", "") for word in key),
                ", ".join(f"{r['val_bits_per_byte']:.3f}" for r in group),
                f"{first['n_parameters']:,}",
                f"{first['bytes_per_token']:.2f}",
                f"{first['tokens_seen']:,}",
                f"{first.get('seconds', 0):.0f}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.families", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--shakespeare", default="karpathy/tiny_shakespeare", metavar="FOLDER", help="a local copy")
    p.add_argument("--flops", type=float, default=5e12, help="of each training (default: %(default)s)")
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    p.add_argument("--time", action="store_true", help="measure what a step takes, and nothing else")
    p.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the results are kept, as JSON")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every training")
    args = p.parse_args()
    disable_progress_bars()

    facts_here = machine("torch", "tokenizers")
    settings = {"flops": args.flops, "overrides": args.overrides}
    runs: list[dict] = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    if any(r[key] != value for r in runs for key, value in settings.items()):
        p.error(f"{args.out} holds runs of other FLOPs or overrides; name another file")
    models: dict[str, GPT] = {}
    for (corpus, (data, splits)), (tokenizer, train) in product(corpora(args.shakespeare).items(), TOKENIZERS.items()):
        found = facts(splits, train)
        for family, build in FAMILIES.items():
            model = build(vocab_size=found["vocab_size"], block_size=BLOCK)
            max_steps = round(args.flops / model.flops_per_token() / BATCH / BLOCK)
            if args.time:
                models[f"{corpus} {family} {tokenizer}"] = model
                continue
            for seed in args.seeds:
                key = {"corpus": corpus, "family": family, "tokenizer": tokenizer, "seed": seed}
                if any(key.items() <= r.items() for r in runs):
                    continue
                words = [*data.split(), f"model={family}", *f"tokenizer={tokenizer}".split(), f"seed={seed}"]
                words += ["optimizer=adamw", "schedule=cosine", f"trainer.max_steps={max_steps}"]
                words += [f"eval_every={max_steps}"]
                words += [f"data.max_val_tokens={round(VAL_BYTES / found['bytes_per_token'])}", *args.overrides]
                summary = trained(*words)
                reached = {k: summary[k] for k in ("val_loss", "val_bits_per_byte", "n_parameters", "tokens_seen")}
                runs.append(key | found | reached | settings | {"max_steps": max_steps})
                print(runs[-1], file=sys.stderr, flush=True)
                save(args.out, facts_here, runs=runs)
    for name, seconds in (seconds_per_step(models) if args.time else {}).items():
        for r in runs:
            if f"{r['corpus']} {r['family']} {r['tokenizer']}" == name:
                r["seconds"] = seconds * r["max_steps"]
    save(args.out, facts_here, runs=runs)
    print(table(runs))


if __name__ == "__main__":
    main()
