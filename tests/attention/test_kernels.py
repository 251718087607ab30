"""Every kernel against the one that is written out, on every mask, and the tutorials' mistakes."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conftest import CONF, choices
from tinygpt.attention import Kernel, Manual, Mask
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.masks import random_blocks
from tinygpt.attention.sliding_window import SlidingWindow
from tinygpt.config import target

B, H, T, D = 3, 8, 6, 4


def configured(name: str) -> Kernel:
    """The kernel of a configuration, in strips and blocks so short that a few tokens are several."""
    node = OmegaConf.load(CONF / "attention" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    kernel = target({"_target_": node.get("attention", node)["_target_"]})()
    return replace(kernel, strip=4) if isinstance(kernel, Chunked) else kernel


@pytest.fixture(params=choices("attention"))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return configured(request.param)


def trains(kernel: Kernel) -> bool:
    try:
        kernel.check(device="cpu", dropout=0.0, random=False)
    except ValueError:
        return False
    return True


TRAINABLE = [name for name in choices("attention") if trains(configured(name))]


@pytest.fixture(params=TRAINABLE)
def trainable(request: pytest.FixtureRequest) -> Kernel:
    """A kernel with a backward pass on a CPU."""
    return configured(request.param)


def qkv(
    T: int = T, S: int | None = None, dtype: torch.dtype = torch.float64, n_kv_head: int = H, B: int = B
) -> tuple[Tensor, Tensor, Tensor]:
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, n_kv_head, S, D), (B, n_kv_head, S, D))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)  # type: ignore[return-value]


def left(S: int) -> Tensor:
    """Rows of S, S - 2 and one real tokens, the others in front; (3, S)."""
    return torch.arange(S) >= torch.tensor([[min(2, S - 1)], [0], [S - 1]])


def documents(S: int) -> Tensor:
    """(3, S), any numbers."""
    ends = torch.tensor([[2, 5], [50, 51], [1, 2]])
    return torch.tensor([9, 3, 5])[(torch.arange(S)[:, None] >= ends[:, None]).sum(-1)]


WINDOWS: dict[str, Callable[[int], dict]] = {
    "window of 1": lambda S: {"window": 1},
    "window": lambda S: {"window": 3},
    "window and global": lambda S: {"window": 3, "n_global": 2},
    "window and random": lambda S: {"window": 2, "random": random_blocks(S, 1, seed=1), "random_block": 2},
}
MASKS: dict[str, Callable[[int], Mask]] = {
    "causal": lambda S: Mask(),
    "left padding": lambda S: Mask(padding=left(S)),
    "right padding": lambda S: Mask(padding=left(S).flip(1)),
    "a row of padding": lambda S: Mask(padding=left(S) & torch.tensor([[True], [True], [False]])),
    "documents": lambda S: Mask(documents=documents(S)),
    "documents and padding": lambda S: Mask(padding=left(S).flip(1), documents=documents(S)),
}
MASKS |= {
    f"{name}, {window}": lambda S, mask=mask, more=more: replace(mask(S), **more(S))
    for name, mask in list(MASKS.items())
    for window, more in WINDOWS.items()
}
MASKS |= {
    "none": lambda S: Mask(causal=False),
    "padding alone": lambda S: Mask(causal=False, padding=left(S)),
    "documents alone": lambda S: Mask(causal=False, documents=documents(S)),
}


def able(kernel: Kernel, mask: Mask) -> bool:
    """Whether the kernel has this mask; where not, it says so by name."""
    return not (isinstance(kernel, SlidingWindow) and mask.random is not None)


def assert_equal(kernel: Kernel, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Outputs and gradients, in float64."""
    expected = Manual()(q, k, v, mask)
    if not trains(kernel):
        out = kernel(q.detach(), k.detach(), v.detach(), mask)
        torch.testing.assert_close(out, expected.detach(), atol=1e-10, rtol=0)
        return
    out = kernel(q, k, v, mask)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    upstream = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(y, (q, k, v), upstream) for y in (out, expected))
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, atol=1e-10, rtol=0)


@pytest.mark.parametrize("n_kv_head", [H, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_outputs_and_gradients_equal_those_written_out(kernel: Kernel, mask: Callable[[int], Mask], n_kv_head: int):
    if not able(kernel, mask(1)):
        with pytest.raises(ValueError, match="sliding_window has no random blocks; set model.n_random=0"):
            kernel(*qkv(), mask(T))
        return
    for n in (1, 2, 4, 7, 13) if trains(kernel) else (1, 13):
        assert_equal(kernel, mask(n), *qkv(n, n_kv_head=n_kv_head))


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, int, int, Mask]:
    """B, T, n_kv_head and a mask of everything together; queries behind a cache of any length."""
    B, T, start = draw(st.integers(1, 3)), draw(st.integers(1, 19)), draw(st.integers(0, 9))
    S = start + T
    lengths = [draw(st.integers(1, S)) for _ in range(B)]
    side = draw(st.sampled_from(["left", "right"]))
    real = torch.arange(S) < torch.tensor(lengths)[:, None]
    changes = torch.tensor([[draw(st.integers(0, 3)) == 0 for _ in range(S)] for _ in range(B)])
    random = draw(st.integers(0, 2))
    return (
        B,
        T,
        draw(st.sampled_from([1, 4, H])),
        Mask(
            padding=draw(st.sampled_from([None, real if side == "right" else real.flip(1)])),
            documents=draw(st.sampled_from([None, changes.cumsum(1)])),
            start=start,
            window=draw(st.sampled_from([None, 1, 2, 3, 5, 8, 40])),
            n_global=draw(st.integers(0, 3)),
            random=random_blocks(S, random, seed=random) if random else None,
            random_block=draw(st.integers(1, 3)),
        ),
    )


@pytest.mark.parametrize("name", TRAINABLE)
@given(problem=problems())
@settings(max_examples=60)
def test_everything_together_equals_what_is_written_out(name: str, problem: tuple[int, int, int, Mask]):
    check_problem(configured(name), *problem)


@given(problem=problems())
@settings(max_examples=12)  # flex traces each of them, a fifth of a second
def test_everything_together_is_the_same_in_flex(problem: tuple[int, int, int, Mask]):
    check_problem(configured("flex"), *problem)


def check_problem(kernel: Kernel, B: int, T: int, n_kv_head: int, mask: Mask) -> None:
    if able(kernel, mask):
        assert_equal(kernel, mask, *qkv(T, mask.start + T, n_kv_head=n_kv_head, B=B))


@pytest.mark.parametrize("more", [{}, {"window": 2}, {"window": 2, "n_global": 1}], ids=["whole", "window", "global"])
@pytest.mark.parametrize("documents", [None, documents(T)], ids=["row", "documents"])
@pytest.mark.parametrize("n_kv_head", [H, 2])
@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
def test_chunks_behind_a_cache_equal_one_pass(
    kernel: Kernel, chunk: int, n_kv_head: int, documents: Tensor | None, more: dict
):
    q, k, v = (x.detach() for x in qkv(n_kv_head=n_kv_head))
    whole = kernel(q, k, v, Mask(documents=documents, **more))
    pieces = []
    for i in range(0, T, chunk):
        end = i + chunk
        mask = Mask(documents=None if documents is None else documents[:, :end], start=i, **more)
        pieces.append(kernel(q[:, :, i:end], k[:, :, :end], v[:, :, :end], mask))
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "left padding", "a row of padding, window", "documents, window and global"])
def test_short_floats_stay_finite_and_near(kernel: Kernel, name: str, dtype: torch.dtype):
    mask = MASKS[name]
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    q, k, v = qkv(13)
    short = [x.detach().to(dtype).requires_grad_(trains(kernel)) for x in (q, k, v)]
    out = kernel(*short, mask(13))
    torch.testing.assert_close(out.double(), Manual()(q, k, v, mask(13)), atol=tolerance, rtol=tolerance)
    if trains(kernel):
        theirs = torch.autograd.grad(Manual()(q, k, v, mask(13)).square().sum(), (q, k, v))
        for ours, expected in zip(torch.autograd.grad(out.square().sum(), short), theirs, strict=True):
            # bfloat16 keeps 8 bits of what a gradient is a sum of
            torch.testing.assert_close(ours.double(), expected, atol=10 * tolerance, rtol=10 * tolerance)


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


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=["math", "flash"])
@pytest.mark.parametrize("name", ["causal", "left padding", "documents, window", "none"])
def test_the_flag_and_the_matrix_are_never_passed_together(name: str, backend: SDPBackend):
    """One of PyTorch's backends refuses both, another takes the flag's alignment."""
    with sdpa_kernel(backend):
        assert_equal(configured("sdpa"), MASKS[name](T), *qkv())
        behind = replace(MASKS[name](T), start=T - 2)
        q, k, v = (x.detach() for x in qkv(2, T))
        torch.testing.assert_close(configured("sdpa")(q, k, v, behind), Manual()(q, k, v, behind))


@pytest.mark.parametrize("window", [3, 4, 5])
def test_a_window_is_a_band(kernel: Kernel, window: int):
    """Off by one on neither side: against a band matrix and PyTorch's own kernel."""
    q, k, v = (x.detach() for x in qkv(12))
    ones = torch.ones(12, 12, dtype=torch.bool)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=ones.tril() & ones.triu(1 - window))
    torch.testing.assert_close(kernel(q, k, v, Mask(window=window)), expected)


def test_strips_and_bands_hold_no_matrix():
    """What is kept for the backward pass grows with T, where that of the kernel written out grows with its square."""
    kept: dict[str, list[int]] = {}
    for name, kernel, mask in (
        ("manual", Manual(), Mask()),
        ("chunked", Chunked(strip=8), Mask()),
        ("sliding_window", SlidingWindow(), Mask(window=8, n_global=1)),
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
        kernel.check(device="cuda", dropout=0.1, random=False)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_flex_gradients_equal_those_written_out_on_a_gpu(mask: Callable[[int], Mask]):
    S = 200
    described = mask(S)
    moved = {name: x.cuda() for name, x in vars(described).items() if isinstance(x, Tensor)}
    q, k, v = (torch.randn(3, 4, S, 32, device="cuda", requires_grad=True) for _ in range(3))
    outs = [kernel(q, k, v, replace(described, **moved)) for kernel in (configured("flex"), Manual())]
    torch.testing.assert_close(*outs, atol=1e-3, rtol=1e-3)
    ours, theirs = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs)
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, their_gradient, atol=1e-2, rtol=1e-2)


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


def test_a_strip_of_nothing_is_refused():
    with pytest.raises(ValueError, match="strip must be at least 1, got 0"):
        Chunked(strip=0)
