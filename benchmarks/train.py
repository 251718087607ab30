"""What a training step costs: ours with bar and logging, the same without Lightning, `transformers`, products alone.

    python -m benchmarks.train
    python -m benchmarks.train --device cuda --dtype bfloat16

The known small reference's model (GPT-2, 4 layers, 4 heads, 128 wide, 65 ids) on 12 rows of 64 random tokens, in one
process, all taking turns: the run of `train.py` with its bar, its records and its checks; a bare loop over the same
model (forward, loss, backward, clipping, AdamW); the same loop over `transformers`' GPT-2; and the matrix products of
such a step and nothing else. Of our own step also what bar and records take. What a run takes besides its steps:
`benchmarks.footprint`.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from benchmarks import machine, save
from tinygpt.model import GPT2, next_token_loss
from tinygpt.optim.adamw import adamw
from tinygpt.training.metrics import Metrics
from tinygpt.training.progress import Progress

VOCABULARY, LAYERS, HEADS, WIDTH, BLOCK, ROWS = 65, 4, 4, 128, 64, 12
TURN = 20  # steps

COMMAND = [
    "data=text_files",
    "data.files=corpus.txt",
    f"data.batch_size={ROWS}",
    "data.val_fraction=0.01",
    "tokenizer=char",
    "model=gpt2",
    "optimizer=adamw",
    "schedule=cosine",
    f"model.block_size={BLOCK}",
    f"model.n_layer={LAYERS}",
    f"model.n_head={HEADS}",
    f"model.n_embd={WIDTH}",
    "eval_every=1000000",
    "run_dir=run",
]


def corpus(path: Path) -> None:
    """A text of 65 characters in no order: what a step costs does not depend on it."""
    torch.manual_seed(0)
    path.write_text("".join(chr(48 + i) for i in torch.randint(VOCABULARY, (1_000_000,)).tolist()))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bare(model: nn.Module, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """A training step in as few lines as there can be, on a model that returns logits."""
    model.to(device).train()
    optimizer = adamw(model)
    ids = torch.randint(VOCABULARY, (1_000_000,))
    autocast = torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32)

    def step() -> None:
        rows = torch.stack([ids[i : i + BLOCK + 1] for i in torch.randint(len(ids) - BLOCK - 1, (ROWS,)).tolist()])
        rows = rows.to(device)
        with autocast:
            logits = model(rows[:, :-1])
        next_token_loss(getattr(logits, "logits", logits), rows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def products(model: GPT2, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """The matrix products of a step: three for each linear layer, six for each layer's attention."""
    N, D = ROWS * BLOCK, WIDTH // HEADS
    new = {"device": device, "dtype": dtype}
    work: list[tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]] = []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            m, n = layer.weight.shape
            x, w, y = torch.randn(N, n, **new), torch.randn(m, n, **new), torch.randn(N, m, **new)
            work += [(torch.mm, x, w.T, torch.empty_like(y)), (torch.mm, y, w, torch.empty_like(x))]
            work += [(torch.mm, y.T, x, torch.empty_like(w))]
    for _ in range(LAYERS):
        x, a = torch.randn(ROWS * HEADS, BLOCK, D, **new), torch.randn(ROWS * HEADS, BLOCK, BLOCK, **new)
        work += 2 * [(torch.bmm, x, x.mT, torch.empty_like(a))] + 4 * [(torch.bmm, a, x, torch.empty_like(x))]

    def step() -> None:
        for product, a, b, out in work:
            product(a, b, out=out)

    return step


class Turns(pl.Callback):
    """Between two turns of the run, one of each peer."""

    peers: dict[str, Callable[[], None]]
    device: str
    times: dict[str, list[float]]  # seconds a step, by turn
    logging: list[float]  # seconds, by call

    def on_fit_start(self, trainer: pl.Trainer, *_others: Any) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Metrics | Progress):
                for name in ("on_train_batch_start", "on_train_batch_end"):
                    setattr(callback, name, self._timed(getattr(callback, name)))

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        @wraps(hook)
        def timed(*args: Any) -> None:
            begin = time.perf_counter()
            hook(*args)
            self.logging.append(time.perf_counter() - begin)

        return timed

    def on_train_start(self, *_others: Any) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, *_others: Any) -> None:
        if trainer.global_step % TURN:
            return
        synchronize(self.device)
        self.times.setdefault("tinygpt", []).append((time.perf_counter() - self.since) / TURN)
        for name, step in self.peers.items():
            begin = time.perf_counter()
            for _ in range(TURN):
                step()
            synchronize(self.device)
            self.times.setdefault(name, []).append((time.perf_counter() - begin) / TURN)
        self.since = time.perf_counter()


class Terminal(io.StringIO):
    """Where the run's bar is drawn."""

    def isatty(self) -> bool:
        return True


def steps(rounds: int, logger: str, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds of a step: of each the median, of logging the mean, for it is every tenth step's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import train
    from benchmarks import train as module  # this file, under the name that the configuration gives it

    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH}
    plain: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    plain |= {"bos_token_id": None, "eos_token_id": None}
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=BLOCK, **sizes, **plain))
    model = GPT2(vocab_size=VOCABULARY, block_size=BLOCK, **sizes)
    module.Turns.peers = {
        "bare loop": bare(model, device, dtype),
        "transformers": bare(theirs, device, dtype),
        "products": products(model, device, dtype),
    }
    module.Turns.device, module.Turns.times, module.Turns.logging = device, {}, []
    precision = "32-true" if dtype == torch.float32 else "bf16-mixed"
    n_steps = (rounds + 1) * TURN
    words = [*COMMAND, f"trainer.max_steps={n_steps}", f"trainer.accelerator={device}", f"logger={logger}"]
    words += [f"trainer.precision={precision}", "+callbacks.turns._target_=benchmarks.train.Turns"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        corpus(Path("corpus.txt"))
        sys.argv[1:] = words
        with contextlib.redirect_stdout(Terminal()):
            assert train.main() == 0
    found = {name: statistics.median(times[1:]) for name, times in module.Turns.times.items()}
    found["bar and records"] = sum(module.Turns.logging) / n_steps
    return {name: 1000 * seconds for name, seconds in found.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--logger", default="csv", help="as train.py takes it (default: %(default)s)")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="(default: %(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    args = p.parse_args()

    facts = machine("torch", "lightning", "transformers") | {"dtype": args.dtype}
    if args.device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    found = steps(args.rounds, args.logger, args.device, getattr(torch, args.dtype))
    ours = found["tinygpt"]
    print("\n| a step of 12 x 64 tokens | ms | of ours |\n|---|---|---|")
    for name, ms in found.items():
        print(f"| {name} | {ms:.1f} | {ms / ours:.1%} |")
    print(f"\noverhead over the bare loop: {ours / found['bare loop'] - 1:.1%}")
    if args.out:
        save(args.out, facts, steps_ms=found)


if __name__ == "__main__":
    main()
