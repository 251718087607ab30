"""Every kernel against softmax(q·kᵀ/√D, where the mask allows)·v written out, and the tutorials' mistakes."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tests.conftest import CONF, choices
from tinygpt.attention import Kernel, Mask
from tinygpt.config import target

B, H, T, D = 3, 8, 6, 4


@pytest.fixture(params=choices("attention"))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """The kernel of each configuration."""
    node = OmegaConf.load(CONF / "attention" / f"{request.param}.yaml")
    assert isinstance(node, DictConfig)
    return target({"_target_": node["_target_"]})()


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))  # neighbouring heads share
    scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    empty = ~allowed.any(dim=-1, keepdim=True)  # a query that sees nothing: any weights, then zeros
    weights = scores.masked_fill(~(allowed | empty), -torch.inf).softmax(dim=-1).masked_fill(empty, 0.0)
    return weights @ v


def qkv(
    T: int = T, S: int | None = None, dtype: torch.dtype = torch.float64, n_kv_head: int = H
) -> tuple[Tensor, Tensor, Tensor]:
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, n_kv_head, S, D), (B, n_kv_head, S, D))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)  # type: ignore[return-value]


LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]]).bool()
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [7, 7, 7, 7, 7, 7], [3, 4, 3, 3, 4, 5]])  # any numbers, in any order
MASKS = {
    "causal": Mask(),
    "none": Mask(causal=False),
    "left padding": Mask(padding=LEFT),
    "right padding": Mask(padding=LEFT.flip(1)),
    "a row of padding": Mask(padding=LEFT & torch.tensor([[True], [True], [False]])),
    "padding alone": Mask(causal=False, padding=LEFT),
    "documents": Mask(documents=DOCUMENTS),
    "documents alone": Mask(causal=False, documents=DOCUMENTS),
    "documents and padding": Mask(padding=LEFT, documents=DOCUMENTS),
}


@pytest.mark.parametrize("n_kv_head", [H, 2, 1])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_outputs_and_gradients_equal_the_formula(kernel: Kernel, mask: Mask, n_kv_head: int):
    q, k, v = qkv(n_kv_head=n_kv_head)
    out, expected = kernel(q, k, v, mask), written_out(q, k, v, mask)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    upstream = torch.randn_like(out)
    ours = torch.autograd.grad(out, (q, k, v), upstream)
    theirs = torch.autograd.grad(expected, (q, k, v), upstream)
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, atol=1e-10, rtol=0)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "documents"])
@pytest.mark.parametrize("n_kv_head", [H, 2])
@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
def test_chunks_behind_a_cache_equal_one_pass(kernel: Kernel, chunk: int, n_kv_head: int, documents: Tensor | None):
    q, k, v = qkv(n_kv_head=n_kv_head)
    whole = kernel(q, k, v, Mask(documents=documents))
    pieces = []
    for i in range(0, T, chunk):
        end = i + chunk
        mask = Mask(documents=None if documents is None else documents[:, :end], start=i)
        pieces.append(kernel(q[:, :, i:end], k[:, :, :end], v[:, :, :end], mask))
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_short_floats_stay_finite_and_near(kernel: Kernel, mask: Mask, dtype: torch.dtype):
    q, k, v = qkv()
    out = kernel(q.to(dtype), k.to(dtype), v.to(dtype), mask)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    torch.testing.assert_close(out.double(), written_out(q, k, v, mask), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "documents"])
def test_a_query_that_sees_nothing_gets_zeros_and_gives_zero_gradients(kernel: Kernel, documents: Tensor | None):
    q, k, v = qkv()
    out = kernel(q, k, v, Mask(padding=LEFT, documents=documents))
    assert torch.equal(out[0, :, :2], torch.zeros(H, 2, D))
    assert (out[0, :, 2:] != 0).all()
    gradients = torch.autograd.grad(out[0, :, :2].sum(), (q, k, v))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


def test_nan_in_padded_keys_and_values_reaches_nothing(kernel: Kernel):
    q, k, v = qkv()
    mask = Mask(padding=LEFT)
    clean = kernel(q, k, v, mask)
    poison = ~LEFT[:, None, :, None]
    bad_k, bad_v = k.detach().masked_fill(poison, torch.nan), v.detach().masked_fill(poison, torch.nan)
    bad_k.requires_grad_()
    bad_v.requires_grad_()
    poisoned = kernel(q, bad_k, bad_v, mask)
    assert torch.equal(poisoned, clean)
    for gradient in torch.autograd.grad(poisoned.sum(), (q, bad_k, bad_v)):
        assert torch.isfinite(gradient).all()


def test_the_derivative_by_another_document_is_exactly_zero(kernel: Kernel):
    q, k, v = qkv()
    for t in range(T):
        dk, dv = torch.autograd.grad(kernel(q, k, v, Mask(documents=DOCUMENTS))[0, :, t].sum(), (k, v))
        own = (DOCUMENTS[0] == DOCUMENTS[0, t]) & (torch.arange(T) <= t)
        assert (dk[:, :, ~own] == 0).all()
        assert (dv[:, :, ~own] == 0).all()
        assert (dv[0, :, own] != 0).all()


def test_the_derivative_by_a_later_input_is_exactly_zero(kernel: Kernel):
    q, k, v = qkv()
    for t in range(T):
        dk, dv = torch.autograd.grad(kernel(q, k, v, Mask())[:, :, t].sum(), (k, v))
        assert (dk[:, :, t + 1 :] == 0).all()
        assert (dv[:, :, t + 1 :] == 0).all()
        assert (dv[:, :, : t + 1] != 0).all()


def test_scores_are_divided_by_the_root_of_the_head_size():
    q, k, v = qkv()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(written_out(q, k, v, Mask()), expected)
    by_embedding = written_out(q / sqrt(H), k, v, Mask())  # √embed_size = √H · √head_size
    assert not torch.allclose(by_embedding, expected)


def test_the_first_query_attends_to_itself_alone(kernel: Kernel):
    q, k, v = qkv()
    torch.testing.assert_close(kernel(q, k, v, Mask())[:, :, 0], v[:, :, 0])


def test_one_query_behind_a_cache_sees_more_than_the_first_key(kernel: Kernel):
    q, k, v = qkv(T=1, S=T)
    ours = kernel(q, k, v, Mask(start=T - 1))
    torch.testing.assert_close(ours, written_out(q, k, v, Mask(start=T - 1)))
    top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # the flag's alignment, the known mistake
    assert not torch.allclose(ours, top_left)


def test_dropout_drops_weights_only_when_asked(kernel: Kernel):
    q, k, v = qkv(dtype=torch.float32)
    assert torch.equal(kernel(q, k, v, Mask()), kernel(q, k, v, Mask(), dropout=0.0))
    assert not torch.equal(kernel(q, k, v, Mask(), dropout=0.5), kernel(q, k, v, Mask(), dropout=0.5))


@pytest.mark.parametrize(
    ("q", "k", "words"),
    [
        ((B, T, D), (B, T, D), r"q must have 4 axes, \(B, H, T, D\), got shape \(3, 6, 4\)"),
        ((B, H, T, D), (B, T, H, D), "the heads of q must be a multiple of those of k and v, got 8 and 6"),
        ((B, H, T, D), (B, 2 * H, T, D), "the heads of q must be a multiple of those of k and v, got 8 and 16"),
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
