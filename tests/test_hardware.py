from pathlib import Path

import pytest
import torch

from tinygpt import hardware


@pytest.fixture(autouse=True)
def _fresh():
    hardware.has_bf16.cache_clear()
    yield
    hardware.has_bf16.cache_clear()  # of what a test made it see


@pytest.mark.parametrize(
    ("flags", "width", "expected"),
    [
        ("avx2", 768, "32-true"),
        ("avx2 avx512_bf16", 768, "bf16-mixed"),
        ("amx_bf16", 384, "bf16-mixed"),
        ("amx_bf16", 256, "32-true"),
    ],
)
def test_auto_takes_bf16_on_a_cpu_that_has_it_for_a_wide_model(
    monkeypatch: pytest.MonkeyPatch, flags: str, width: int, expected: str
):
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self: f"flags\t\t: fpu {flags} sse2\n")
    assert hardware.precision("auto", "cpu", width) == expected


@pytest.mark.parametrize("has_it", [True, False])
def test_auto_takes_bf16_on_a_gpu_that_has_it_without_emulation(monkeypatch: pytest.MonkeyPatch, has_it: bool):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_it and not including_emulation)
    assert hardware.precision("auto", "cuda", 128) == ("bf16-mixed" if has_it else "32-true")


def test_a_named_precision_is_kept_and_fp16_on_a_cpu_refused():
    assert hardware.precision("bf16-mixed", "cpu", 128) == "bf16-mixed"
    assert hardware.precision("16-mixed", "cuda", 128) == "16-mixed"
    with pytest.raises(ValueError, match="precision=16-mixed needs a GPU"):
        hardware.precision("16-mixed", "cpu", 128)


def test_the_peak_is_measured_on_a_cpu_known_for_a_gpu_in_16_bits_and_else_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert hardware.peak_flops("cuda", "bf16-mixed") == 989e12
    assert hardware.peak_flops("cuda", "32-true") is None
    assert hardware.peak_flops("cuda", "64-true") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-40GB")
    assert hardware.peak_flops("cuda", "bf16-mixed") == 312e12
    for other in ("NVIDIA H20", "NVIDIA L40", "NVIDIA T400", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=other: name)
        assert hardware.peak_flops("cuda", "bf16-mixed") is None
    assert hardware.peak_flops("mps", "32-true") is None
    measured = hardware.peak_flops("cpu", "32-true")
    assert measured is not None
    assert 1e8 < measured < 1e14


def here(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_and_gpu_take_what_there_is(monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, cuda=True, mps=False)
    assert [hardware.device(name) for name in ("auto", "gpu", "cuda", "cpu")] == ["cuda", "cuda", "cuda", "cpu"]
    here(monkeypatch, cuda=False, mps=True)
    assert [hardware.device(name) for name in ("auto", "gpu", "mps", "cpu")] == ["mps", "mps", "mps", "cpu"]
    here(monkeypatch, cuda=False, mps=False)
    assert [hardware.device(name) for name in ("auto", "cpu")] == ["cpu", "cpu"]


@pytest.mark.parametrize("name", ["gpu", "cuda", "mps"])
def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch, name: str):
    here(monkeypatch, cuda=False, mps=False)
    with pytest.raises(ValueError, match=f"there is no {name} here; auto takes what there is"):
        hardware.device(name)
    with pytest.raises(ValueError, match="the device must be auto, cpu, gpu, cuda or mps, got 'abacus'"):
        hardware.device("abacus")
