"""What each kernel must do beside agreeing, and the tutorials' mistakes."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attention.kernels import MASKS, B, D, H, T, configured, documents, left, qkv, trains
from tinygpt.attention import Kernel, Manual, Mask
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.sliding_window import SlidingWindow


def test_scores_too_large_for_half_precision_make_no_nan(kernel: Kernel):
    q, k, v = (200 * x.detach().half() for x in qkv())  # q · k is up to 10^5, more than fp16 holds
    assert torch.isfinite(kernel(q, k, v, Mask(padding=left(T)))).all()


@pytest.mark.parametrize("documents", [None, documents(T)], ids=["whole", "documents"])
@pytest.mark.parametrize("window", [None, 2])
def test_a_query_that_sees_nothing_gets_zeros_and_gives_zero_gradients(
    trainable: Kernel, documents: Tensor | None, window: int | None
):
    q, k, v = qkv()
    out = trainable(q, k, v, Mask(padding=left(T), documents=documents, window=window))
    assert torch.equal(out[0, :, :2], torch.zeros(H, 2, D))
    assert (out[0, :, 2:] != 0).all()
    gradients = torch.autograd.grad(out[0, :, :2].sum(), (q, k, v))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


@pytest.mark.parametrize("window", [None, 2])
def test_nan_in_padded_keys_and_values_reaches_nothing(kernel: Kernel, window: int | None):
    q, k, v = (x.detach() for x in qkv())
    mask = Mask(padding=left(T), window=window)
    poison = ~left(T)[:, None, :, None]
    bad = [x.masked_fill(poison, torch.nan).requires_grad_(trains(kernel)) for x in (k, v)]
    q.requires_grad_(trains(kernel))
    poisoned = kernel(q, *bad, mask)
    assert torch.equal(poisoned, kernel(q, k, v, mask))
    if trains(kernel):
        for gradient in torch.autograd.grad(poisoned.sum(), (q, *bad)):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    "name", ["causal", "documents", "left padding, window", "documents and padding, window and global"]
)
def test_the_derivative_by_what_the_mask_hides_is_exactly_zero(trainable: Kernel, name: str):
    mask = MASKS[name]
    q, k, v = qkv(9)
    allowed = mask(9).dense(9, 9, torch.device("cpu")).expand(3, 1, 9, 9)[:, 0]
    out = trainable(q, k, v, mask(9))
    for t in range(9):
        dk, dv = torch.autograd.grad(out[:, :, t].sum(), (k, v), retain_graph=True)
        seen = allowed[:, t]  # (B, S)
        assert not seen[:, t + 1 :].any()
        assert (dk.transpose(1, 2)[~seen] == 0).all()
        assert (dv.transpose(1, 2)[~seen] == 0).all()
        assert (dv.transpose(1, 2)[seen] != 0).all()


def test_strips_and_bands_hold_no_matrix():
    """What is kept for the backward pass grows with T, where that of the kernel written out grows with its square."""
    kept: dict[str, list[int]] = {}
    for name, kernel, mask in (
        ("manual", Manual(), Mask()),
        ("chunked", Chunked(strip=8), Mask()),
        ("sliding_window", SlidingWindow(block=3), Mask(window=8, n_global=1)),
    ):
        for n in (64, 128, 256):
            storages: dict[int, torch.UntypedStorage] = {}  # views of one are kept once

            def keep(x: Tensor, storages: dict = storages) -> Tensor:
                storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
                return x

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                kernel(*qkv(n), mask)
            kept.setdefault(name, []).append(sum(storage.nbytes() for storage in storages.values()))
    assert kept["manual"][2] > 3.5 * kept["manual"][1]
    assert kept["sliding_window"][2] < 2.2 * kept["sliding_window"][1]
    assert kept["chunked"][2] < 2.2 * kept["chunked"][1]


def test_scores_are_divided_by_the_root_of_the_head_size():
    q, k, v = qkv()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(Manual()(q, k, v, Mask()), expected)
    by_embedding = Manual()(q / sqrt(H), k, v, Mask())  # √embed_size = √H · √head_size
    assert not torch.allclose(by_embedding, expected)


def test_weights_are_distributions_over_what_is_seen_or_nothing():
    q, k, _ = qkv(n_kv_head=2)
    mask = Mask(padding=left(T), window=2)
    weights = Manual().weights(q, k, mask)
    assert weights.shape == (B, H, T, T)
    allowed = mask.dense(T, T, torch.device("cpu")).expand_as(weights)
    assert (weights[~allowed] == 0).all()
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double())


def test_the_first_query_attends_to_itself_alone(kernel: Kernel):
    q, k, v = (x.detach() for x in qkv())
    torch.testing.assert_close(kernel(q, k, v, Mask())[:, :, 0], v[:, :, 0])


def test_one_query_behind_a_cache_sees_more_than_the_first_key(kernel: Kernel):
    q, k, v = (x.detach() for x in qkv(T=1, S=T))
    ours = kernel(q, k, v, Mask(start=T - 1))
    torch.testing.assert_close(ours, Manual()(q, k, v, Mask(start=T - 1)))
    top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # the flag's alignment, the known mistake
    assert not torch.allclose(ours, top_left)


@pytest.mark.parametrize("window", [None, 2])
def test_dropout_drops_weights_only_when_asked(trainable: Kernel, window: int | None):
    mask = Mask(window=window)
    q, k, v = qkv(dtype=torch.float32)
    assert torch.equal(trainable(q, k, v, mask), trainable(q, k, v, mask, dropout=0.0))
    assert not torch.equal(trainable(q, k, v, mask, dropout=0.5), trainable(q, k, v, mask, dropout=0.5))


def test_dropped_weights_are_the_same_when_they_are_computed_again():
    """With T = 1 a query takes its own value, twice, or nothing: the gradient must say which."""
    q, k, v = qkv(T=1)
    for kernel in (Manual(), Chunked()):
        out = kernel(q, k, v, Mask(), dropout=0.5)
        (dv,) = torch.autograd.grad(out.sum(), v)
        torch.testing.assert_close(dv, out / v)
        assert 0 < (dv == 0).sum() < dv.numel()


def test_flex_refuses_to_train_where_it_cannot_by_name():
    kernel = configured("flex")
    with pytest.raises(ValueError, match="flex trains on a GPU alone .*, got cpu; take another attention"):
        kernel(*qkv(), Mask())
    with pytest.raises(ValueError, match="flex has no dropout; set model.dropout=0.0"):
        kernel.check(device="cuda", dropout=0.1, random=False, head_dim=64)
    with pytest.raises(ValueError, match="flex needs heads of 16 channels or more, got 8; take fewer heads"):
        kernel.check(device="cuda", dropout=0.0, random=False, head_dim=8)
    with pytest.raises(ValueError, match="flex trains on a GPU alone"):  # dropout is not left out in silence
        kernel(*(x.detach() for x in qkv()), Mask(), dropout=0.1)


@pytest.mark.parametrize(
    ("q", "k", "words"),
    [
        ((B, T, D), (B, T, D), r"q must have 4 axes, \(B, H, T, D\), got shape \(3, 6, 4\)"),
        ((B, H, T, D), (B, T, H, D), "the heads of q must be a multiple of those of k and v .*, got 8 and 6"),
        ((B, H, T, D), (B, 2 * H, T, D), "the heads of q must be a multiple of those of k and v .*, got 8 and 16"),
        ((B, H, T, D), (1, H, T, D), r"q and k differ on axis 0, B \(batch\): 3 and 1"),
        ((B, H, T, D), (B, H, T, D + 1), r"q and k differ on axis 3, D \(head size\): 4 and 5"),
    ],
)
def test_wrong_shapes_are_named_with_both_sizes(kernel: Kernel, q: tuple[int, ...], k: tuple[int, ...], words: str):
    with pytest.raises(ValueError, match=words):
        kernel(torch.zeros(q), torch.zeros(k), torch.zeros(k), Mask())


def test_keys_and_values_of_two_shapes_are_refused(kernel: Kernel):
    with pytest.raises(ValueError, match="k and v must have one shape"):
        kernel(torch.zeros(B, H, T, D), torch.zeros(B, H, T, D), torch.zeros(B, H, T, D + 1), Mask())


def test_strips_and_blocks_of_nothing_are_refused():
    with pytest.raises(ValueError, match="strip must be at least 1, got 0"):
        Chunked(strip=0)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        SlidingWindow(block=0)
