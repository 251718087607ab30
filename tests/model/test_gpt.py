"""What every family computes: causality, padding, documents, checkpointing."""

import pytest
import torch

from tinygpt.generation.cache import KVCache
from tinygpt.model import GPT, next_token_loss


@pytest.fixture
def gpt(each_gpt: GPT) -> GPT:
    return each_gpt


def input_gradients(model: GPT, t: int) -> torch.Tensor:
    """The derivative of all logits at position t by each position's embedding, (T, C)."""
    inputs = []
    hook = model.token_embedding.register_forward_hook(
        lambda module, args, output: inputs.append(output.detach().requires_grad_()) or inputs[-1]
    )
    logits = model(torch.arange(8)[None] % 11)
    hook.remove()
    return torch.autograd.grad(logits[0, t].square().sum(), inputs)[0][0]


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_the_derivative_by_a_later_token_is_exactly_zero(gpt: GPT, gradient_checkpointing: bool):
    gpt.train()
    gpt.gradient_checkpointing = gradient_checkpointing
    for t in range(8):
        gradients = input_gradients(gpt, t)
        assert (gradients[t + 1 :] == 0).all()
        assert (gradients[: t + 1].abs().sum(dim=-1) > 0).all()


def test_logits_ignore_later_tokens(gpt: GPT):
    ids = torch.randint(11, (3, 8))
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    torch.testing.assert_close(gpt(changed)[:, :5], gpt(ids)[:, :5])
    assert not torch.allclose(gpt(changed)[:, 5:], gpt(ids)[:, 5:])


def test_a_later_token_changes_nothing_that_is_earlier_under_a_cache(gpt: GPT):
    ids = torch.randint(11, (2, 8))
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11

    def run(ids: torch.Tensor) -> torch.Tensor:
        cache = KVCache(gpt)
        return torch.cat([gpt(ids[:, i : i + 3], cache=cache) for i in (0, 3, 6)], dim=1)

    with torch.inference_mode():
        before, after = run(ids), run(changed)
    assert torch.equal(after[:, :5], before[:, :5])
    assert (after[:, 5:] != before[:, 5:]).any(dim=-1).all()


LENGTHS = [8, 3, 5]


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """ids (3, 8), padding (3, 8), and the rows alone."""
    rows = [torch.randint(11, (length,)) for length in LENGTHS]
    ids, padding = torch.zeros(3, 8, dtype=torch.int64), torch.zeros(3, 8, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(8 - len(row), 8)
        ids[i, place], padding[i, place] = row, True
    return ids, padding, rows


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_in_a_padded_batch_equals_the_row_alone(gpt: GPT, side: str):
    ids, padding, rows = padded(side)
    logits = gpt(ids, padding=padding)
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i][padding[i]], gpt(row[None])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_a_document_packed_into_a_row_equals_the_document_alone(gpt: GPT, side: str):
    lengths = [2, 1, 3] if side != "none" else [2, 1, 5]
    documents = [torch.randint(11, (length,)) for length in lengths]
    numbers = torch.arange(3).repeat_interleave(torch.tensor(lengths))
    place = slice(8 - sum(lengths), 8) if side == "left" else slice(0, sum(lengths))
    ids, packed, padding = torch.zeros(3, 1, 8, dtype=torch.int64).unbind()
    ids[0, place], packed[0, place], padding[0, place] = torch.cat(documents), numbers, 1
    logits = gpt(ids, documents=packed, padding=padding.bool() if side != "none" else None)[0, place]
    for i, document in enumerate(documents):
        torch.testing.assert_close(logits[numbers == i], gpt(document[None])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_any_token_in_a_padded_place_changes_no_output_and_no_gradient(gpt: GPT, side: str):
    ids, padding, _ = padded(side)
    targets = torch.randint(11, (3, 8)).masked_fill(~padding, -100)

    def outputs_and_gradients(ids: torch.Tensor) -> list[torch.Tensor]:
        gpt.zero_grad()
        logits = gpt(ids, padding=padding)
        next_token_loss(logits, targets).backward()
        return [logits[padding].detach(), *(p.grad.to_dense().clone() for p in gpt.parameters() if p.grad is not None)]

    before = outputs_and_gradients(ids)
    after = outputs_and_gradients(ids.masked_fill(~padding, 7))
    assert len(before) == 1 + len(list(gpt.parameters()))
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


def test_gradient_checkpointing_changes_no_gradient(gpt: GPT):
    gpt.train()
    ids = torch.randint(11, (3, 8))
    gradients = []
    for gradient_checkpointing in (False, True):
        gpt.gradient_checkpointing = gradient_checkpointing
        gpt.zero_grad()
        next_token_loss(gpt(ids), ids).backward()
        gradients.append([p.grad.to_dense().clone() for p in gpt.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def test_gradient_checkpointing_keeps_less_for_the_backward_pass(gpt: GPT):
    kept = []
    for gradient_checkpointing in (False, True):
        model = type(gpt)(**gpt.config | {"n_layer": 8, "gradient_checkpointing": gradient_checkpointing})
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: s.append(x.numel()) or x, lambda x: x):
            model(torch.randint(11, (2, 8)))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4


def test_dropout_acts_in_training_and_never_in_evaluation(gpt: GPT):
    model = type(gpt)(**gpt.config | {"dropout": 0.5})
    ids = torch.randint(11, (2, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_last_only_gives_the_last_position(gpt: GPT):
    ids = torch.randint(11, (3, 8))
    torch.testing.assert_close(gpt(ids, last_only=True), gpt(ids)[:, -1:])


def test_more_than_block_size_tokens_are_refused(gpt: GPT):
    with pytest.raises(ValueError, match="the model sees block_size=8 tokens at most, got 9"):
        gpt(torch.zeros(1, 9, dtype=torch.int64))


def test_fp16_forward_is_finite(gpt: GPT):
    ids, padding, _ = padded("left")
    assert torch.isfinite(gpt.half()(ids, padding=padding)).all()


def test_compiled_weights_keep_their_names(gpt: GPT):
    names = list(gpt.state_dict())
    for block in gpt.blocks:
        block.compile()
    assert list(gpt.state_dict()) == names


@pytest.mark.slow
def test_compiled_blocks_give_the_same_loss_and_gradients(gpt: GPT):
    torch.compiler.reset()  # each family is a graph of its own, and there is a limit to them
    gpt.train()
    ids, padding, _ = padded("right")

    def run() -> list[torch.Tensor]:
        gpt.zero_grad()
        loss = next_token_loss(gpt(ids, padding=padding), ids)
        loss.backward()
        return [loss.detach(), *(p.grad.to_dense().clone() for p in gpt.parameters() if p.grad is not None)]

    eager = run()
    for block in gpt.blocks:
        block.compile(backend="aot_eager")  # traced as ever, without the minutes of generating code
    for ours, expected in zip(run(), eager, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
