"""What a run would cost, measured on one batch; nothing is trained."""

import time
from datetime import timedelta

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tinygpt.data.module import TextDataModule
from tinygpt.model.gpt import GPT
from tinygpt.model.loss import NOT_COUNTED, next_token_loss
from tinygpt.tokenizers import END_OF_TEXT, Tokenizer

TIMED_BATCHES = 3  # the fastest counts
MIB = 2**20


def estimate(
    model: GPT,
    tokenizer: Tokenizer,
    data: TextDataModule,
    *,
    device: str,
    precision: str,
    max_steps: int,
    accumulate: int,
) -> str:
    """Sizes, memory, disk, time, and what the first rows hold, as lines for a person.

    Memory is that of weights, gradients and AdamW's two moments, all in fp32, and of what one batch keeps for its
    backward pass, counted as it runs. Time is that of forward and backward, on the device and in the precision of the
    run, not compiled.
    """
    model.to(device).train()
    batches, layout = data.train_batches(), data.train_layout
    batch = move_data_to_device(batches[0], torch.device(device))
    parameters, flops = model.n_parameters(), model.flops_per_token()
    tokens_per_step = round(layout.n_targets / layout.n_rows * batches.batch_size * accumulate)  # on average
    n_tokens = tokens_per_step * max_steps

    def mean_loss() -> Tensor:
        logits = model(batch.ids, padding=batch.padding, documents=batch.documents)
        return next_token_loss(logits, batch.targets)

    saved: dict[int, int] = {}  # address of a storage → its bytes

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    short = torch.float16 if precision.startswith("16") else torch.bfloat16
    autocast = torch.autocast(device, dtype=short, enabled=precision.endswith("mixed"))
    with saved_tensors_hooks(count, lambda tensor: tensor), autocast:
        loss = mean_loss()
    for parameter in model.parameters():  # kept anyway, not for the backward pass
        saved.pop(parameter.untyped_storage().data_ptr(), None)

    seconds = []
    for _ in range(TIMED_BATCHES):
        start = time.perf_counter()
        with autocast:
            batch_loss = mean_loss()
        batch_loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    model.zero_grad(set_to_none=True)
    total = timedelta(seconds=round(min(seconds) * accumulate * max_steps))
    rate = flops * batch.ids.numel() / min(seconds) / 1e9

    lines = [
        f"parameters   {parameters:,}; vocabulary {tokenizer.vocab_size:,}; fresh loss {loss.item():.3f}",
        f"training     {layout.n_targets:,} tokens in {data.train.n_documents:,} documents",
        f"validation   {data.val_layout.n_targets:,} tokens of {data.validation.n_documents:,} documents",
        f"to see       {n_tokens:,} tokens, {n_tokens / layout.n_targets:.2f} epochs, {tokens_per_step:,} a step",
        f"FLOPs        {flops:,} a token, {flops * n_tokens:.2e} in all",
        f"memory       {16 * parameters / MIB:,.1f} MiB weights, gradients, moments;"
        f" {sum(saved.values()) / MIB:,.1f} MiB activations",
        f"disk         {12 * parameters / MIB:,.1f} MiB a checkpoint;"
        f" {data.train.path.stat().st_size / MIB:,.1f} MiB training tokens",
        f"time         {total} on this {device} in {precision}, validation not counted ({rate:,.0f} GFLOP/s)",
    ]
    for i in range(min(3, len(batch.ids))):
        counted = batch.targets[i] != NOT_COUNTED
        for name, ids in ((f"row {i}", batch.ids), ("  predicts", batch.targets)):
            lines.append(f"{name:12} {_shown(ids[i][counted].tolist(), tokenizer)!r}")
    return "\n".join(lines)


def _shown(ids: list[int], tokenizer: Tokenizer) -> str:
    """The text of ids, the ends of texts written out."""
    documents = [[]]
    for i in ids:
        if i == tokenizer.end_of_text:
            documents.append([])
        else:
            documents[-1].append(i)
    return END_OF_TEXT.join(map(tokenizer.decode, documents))
