"""Every kernel against the one that is written out: on every mask, in every length, in every type."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.attention.kernels import (
    MASKS,
    TRAINABLE,
    H,
    T,
    able,
    assert_equal,
    configured,
    documents,
    qkv,
    trains,
)
from tinygpt.attention import Kernel, Manual, Mask
from tinygpt.attention.masks import random_blocks
from tinygpt.attention.sliding_window import SlidingWindow


@pytest.mark.parametrize("n_kv_head", [H, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_outputs_and_gradients_equal_those_written_out(kernel: Kernel, mask: Callable[[int], Mask], n_kv_head: int):
    if not able(kernel, mask(1)):
        with pytest.raises(ValueError, match="sliding_window (has no random blocks|is causal); "):
            kernel(*qkv(), mask(T))
        return
    for n in (1, 2, 4, 7, 13) if trains(kernel) else (1, 13):
        assert_equal(kernel, mask(n), *qkv(n, n_kv_head=n_kv_head))


@st.composite
def problems(draw: st.DrawFn, random: int = 2) -> tuple[int, int, int, Mask]:
    """B, T, n_kv_head and a mask of everything together; queries behind a cache of any length."""
    B, T, start = draw(st.integers(1, 3)), draw(st.integers(1, 25)), draw(st.integers(0, 9))
    S = start + T
    lengths = [draw(st.integers(1, S)) for _ in range(B)]
    right = torch.arange(S) < torch.tensor(lengths)[:, None]
    holes = torch.tensor([[draw(st.booleans()) for _ in range(S)] for _ in range(B)])
    changes = torch.tensor([[draw(st.integers(0, 3)) == 0 for _ in range(S)] for _ in range(B)])
    random = draw(st.integers(0, random))
    return (
        B,
        T,
        draw(st.sampled_from([1, 4, H])),
        Mask(
            padding=draw(st.sampled_from([None, right, right.flip(1), holes])),
            documents=draw(st.sampled_from([None, changes.cumsum(1)])),
            start=start,
            window=draw(st.sampled_from([None, 1, 2, 3, 5, 8, 40])),
            n_global=draw(st.integers(0, 3)),
            random=random_blocks(S, random, seed=random) if random else None,
            random_block=draw(st.integers(1, 3)),
        ),
    )


@pytest.mark.parametrize("name", TRAINABLE)
@given(data=st.data())
@settings(max_examples=80)
def test_everything_together_equals_what_is_written_out(name: str, data: st.DataObject):
    kernel = configured(name)
    B, T, n_kv_head, mask = data.draw(problems(random=0 if isinstance(kernel, SlidingWindow) else 2))
    assert_equal(kernel, mask, *qkv(T, mask.start + T, n_kv_head=n_kv_head, B=B))


@given(problem=problems())
@settings(max_examples=12)  # flex traces each of them, a fifth of a second
def test_everything_together_is_the_same_in_flex(problem: tuple[int, int, int, Mask]):
    B, T, n_kv_head, mask = problem
    assert_equal(configured("flex"), mask, *qkv(T, mask.start + T, n_kv_head=n_kv_head, B=B))


def test_blocks_of_padding_alone_take_no_global_key_twice():
    padding = torch.arange(12).expand(1, 12) < 2
    assert_equal(configured("sliding_window"), Mask(padding=padding, window=1, n_global=3), *qkv(12, B=1))


@pytest.mark.parametrize("start", [0, 37])
def test_blocks_of_their_default_length_are_the_same(start: int):
    S = 300 + start
    real = torch.arange(S) >= torch.tensor([[0], [50]])
    texts = (torch.arange(S) >= torch.tensor([[140], [250]])).long()
    mask = Mask(padding=real, documents=texts, window=20, n_global=3, start=start)
    assert_equal(SlidingWindow(), mask, *qkv(300, S, n_kv_head=2, B=2))


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


@pytest.mark.parametrize("window", [None, 3])
def test_autocast_stays_near(kernel: Kernel, window: int | None):
    q, k, v = (x.detach().float() for x in qkv(13))
    expected = Manual()(q, k, v, Mask(window=window))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = kernel(q, k, v, Mask(window=window))
    torch.testing.assert_close(out.float(), expected, atol=5e-2, rtol=5e-2)


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
