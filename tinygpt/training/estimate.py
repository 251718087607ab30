"""What a run would cost, measured on a few rows; nothing is trained."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tinygpt import hardware
from tinygpt.data.batches import Batch, TrainBatches
from tinygpt.data.module import TextDataModule
from tinygpt.errors import UserError
from tinygpt.model.gpt import GPT
from tinygpt.model.loss import NOT_COUNTED, next_token_loss
from tinygpt.optim import sparse_tables
from tinygpt.tokenizers import END_OF_TEXT, Tokenizer
from tinygpt.training.budget import Budget

PEAK = 2  # times what is kept for the backward pass: half as much again was measured, and memory comes in pieces
TIMED_BATCHES = 3  # the fastest counts
PROBE = 2**13  # tokens that are tried, at the most, but for one row
MIB = 2**20
NOTHING_FITS = "not even one row fits: a smaller block_size or a smaller model would"


class Memory(NamedTuple):
    """What training holds, in bytes.

    Attributes:
        fixed: weights, gradients and AdamW's two moments, all in fp32, of which Muon keeps one; of tables with sparse
            gradients the weights.
        row: what a row of a batch keeps for the backward pass.
    """

    fixed: int
    row: int

    def peak(self, batch_size: int) -> float:
        return self.fixed + PEAK * batch_size * self.row

    def fitting(self, batch_size: int, available: int | None) -> int:
        """The largest divisor of batch_size that fits; 0 where not even one row does. Where nobody knows, all fit."""
        room = batch_size if available is None else min(batch_size, (available - self.fixed) // (PEAK * self.row))
        return next((rows for rows in range(room, 0, -1) if batch_size % rows == 0), 0)

    def advice(self, batch_size: int, accumulate: int, available: int | None) -> str:
        """The settings that would fit, for the same optimizer step; empty where these do, or where nobody knows."""
        rows = self.fitting(batch_size, available)
        if rows == batch_size:
            return ""
        if not rows:
            return NOTHING_FITS
        return f"data.batch_size={rows} trainer.accumulate_grad_batches={accumulate * batch_size // rows} would fit"


class Probe:
    """A few training rows on the device, forward and backward.

    Args:
        model: on whatever device; it is moved.
        data: whose first rows are taken.
        device, precision: of the run.
    """

    def __init__(self, model: GPT, data: TextDataModule, device: str, precision: str) -> None:
        self.model = model.to(device).train()

        def cut(rows: int) -> Batch:
            rows = max(1, min(rows, data.corpus.batch_size))
            return TrainBatches(data.train, data.train_layout, rows, data.seed)[0]

        batch = cut(PROBE // (data.train_layout.width or 1))
        if batch.ids.numel() > PROBE:  # of documents as rows, whose width is known only now
            batch = cut(PROBE // batch.ids.shape[1])
        self.batch: Batch = move_data_to_device(batch, torch.device(device))
        short = torch.float16 if precision.startswith("16") else torch.bfloat16
        self.autocast = torch.autocast(device, dtype=short, enabled=precision.endswith("mixed"))
        self.device = device

    def loss(self) -> Tensor:
        with self.autocast:
            logits = self.model(self.batch.ids, padding=self.batch.padding, documents=self.batch.documents)
            return next_token_loss(logits, self.batch.targets)

    def memory(self) -> Memory:
        """Counted as the forward pass runs."""
        saved: dict[int, int] = {}  # address of a storage → its bytes

        def count(tensor: Tensor) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(count, lambda tensor: tensor):
            loss = self.loss()  # keeps what is counted alive, so that no address comes twice
        for parameter in self.model.parameters():  # kept anyway, not for the backward pass
            saved.pop(parameter.untyped_storage().data_ptr(), None)
        del loss
        return Memory(4 * _numbers(self.model, 4), sum(saved.values()) // len(self.batch.ids))

    def timed(self, run: Callable[[], object]) -> float:
        """Seconds that something takes on the device."""
        start = time.perf_counter()
        run()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def seconds(self) -> float:
        """For a row."""
        found = [self.timed(lambda: self.loss().backward()) for _ in range(TIMED_BATCHES)]
        self.model.zero_grad(set_to_none=True)
        return min(found) / len(self.batch.ids)


def _numbers(model: GPT, each: int) -> int:
    """So many for each parameter, one for those of a table with sparse gradients."""
    of_tables = sum(table.numel() for table in sparse_tables(model))
    return each * (model.n_parameters() - of_tables) + of_tables


def estimate(
    model: GPT,
    tokenizer: Tokenizer,
    data: TextDataModule,
    *,
    device: str,
    precision: str,
    budget: Budget,
    accumulate: int,
) -> str:
    """Sizes, memory, disk, time, and what the first rows hold, as lines for a person.

    Time is that of forward and backward, on the device and in the precision of the run, not compiled.
    """
    probe = Probe(model, data, device, precision)
    with torch.no_grad():
        loss = probe.loss().item()
    memory, seconds = probe.memory(), probe.seconds()
    batch, layout, batch_size = probe.batch, data.train_layout, data.corpus.batch_size
    parameters, flops = model.n_parameters(), model.flops_per_token()
    tokens_per_step = round(layout.n_targets / layout.n_rows * batch_size * accumulate)  # on average
    seconds_per_step = seconds * batch_size * accumulate
    max_steps = round(min(budget.max_steps, budget.max_seconds / seconds_per_step))
    n_tokens = tokens_per_step * max_steps
    total = timedelta(seconds=round(seconds_per_step * max_steps))
    rate = flops * batch.ids.shape[1] / seconds / 1e9
    available = hardware.memory(device)
    has = f"; there are {available / MIB:,.0f}" if available else ""
    advice = memory.advice(batch_size, accumulate, available)

    lines = [
        f"parameters   {parameters:,}; vocabulary {tokenizer.vocab_size:,}; fresh loss {loss:.3f}",
        f"training     {layout.n_targets:,} tokens in {data.train.n_documents:,} documents",
        f"validation   {data.val_layout.n_targets:,} tokens of {data.validation.n_documents:,} documents",
        f"to see       {n_tokens:,} tokens in {max_steps:,} steps of {tokens_per_step:,},"
        f" {n_tokens / layout.n_targets:.2f} epochs",
        f"FLOPs        {flops:,} a token, {flops * n_tokens:.2e} in all",
        f"memory       {memory.fixed / MIB:,.1f} MiB weights, gradients, moments;"
        f" {batch_size * memory.row / MIB:,.1f} MiB activations;"
        f" {memory.peak(batch_size) / MIB:,.0f} MiB at the most{has}",
        *([f"             too much: {advice}"] if advice else []),
        f"disk         {4 * _numbers(model, 3) / MIB:,.1f} MiB a checkpoint at the most;"
        f" {data.train.path.stat().st_size / MIB:,.1f} MiB training tokens",
        f"time         {total} on this {device} in {precision}, validation not counted ({rate:,.0f} GFLOP/s)",
    ]
    for i in range(min(3, len(batch.ids))):
        counted = batch.targets[i] != NOT_COUNTED
        for name, ids in ((f"row {i}", batch.ids), ("  predicts", batch.targets)):
            lines.append(f"{name:12} {_shown(ids[i][counted].tolist(), tokenizer)!r}")
    return "\n".join(lines)


def out_of_memory(
    model: GPT, data: TextDataModule, *, device: str, precision: str, accumulate: int, available: int | None
) -> str:
    """What a run that ran out of memory wanted, and the settings that would fit, in one line.

    Args:
        available: what there was when it began; what has been freed since need not be free.
    """
    batch_size = data.corpus.batch_size
    what = f"out of memory: data.batch_size={batch_size} rows of model.block_size={model.block_size}"
    try:
        memory = Probe(model, data, device, precision).memory()
    except Exception as error:
        if not hardware.is_out_of_memory(error):
            raise
        return f"{what}; not even a few rows fit: take a smaller block_size or a smaller model"
    advice = memory.advice(batch_size, accumulate, available)
    if not advice:  # more is in use than is counted here, or by others
        halved = max(1, batch_size // 2)
        advice = f"try data.batch_size={halved} trainer.accumulate_grad_batches={accumulate * batch_size // halved}"
    has = f", there were {available / MIB:,.0f}" if available else ""
    saves = "" if model.config["gradient_checkpointing"] else "; model.gradient_checkpointing=true saves more"
    return f"{what} want about {memory.peak(batch_size) / MIB:,.0f} MiB{has}; {advice}{saves}"


def largest_batch(model: GPT, data: TextDataModule, *, device: str, precision: str, rows: int) -> int:
    """The rows of a batch, so that as few batches as fit into memory make up the rows of an optimizer step.

    Raises:
        UserError: not even one row fits.
    """
    try:
        with hardware.same_random_states(device):  # a run whose batches are given draws the same
            fitting = Probe(model, data, device, precision).memory().fitting(rows, hardware.memory(device))
    except Exception as error:
        if not hardware.is_out_of_memory(error):
            raise
        fitting = 0
    if not fitting:
        raise UserError(f"out of memory: {NOTHING_FITS}")
    return fitting


def _shown(ids: list[int], tokenizer: Tokenizer) -> str:
    """The text of ids, the ends of texts written out."""
    documents = [[]]
    for i in ids:
        if i == tokenizer.end_of_text:
            documents.append([])
        else:
            documents[-1].append(i)
    return END_OF_TEXT.join(map(tokenizer.decode, documents))
