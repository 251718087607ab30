from pathlib import Path

import pytest
import torch

from tinygpt.training import hardware


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx2", "32-true"), ("avx2 avx512_bf16", "bf16-mixed"), ("amx_bf16", "bf16-mixed")]
)
def test_auto_takes_bf16_on_a_cpu_that_has_it(monkeypatch: pytest.MonkeyPatch, flags: str, expected: str):
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self: f"flags\t\t: fpu {flags} sse2\n")
    assert hardware.precision("auto", "cpu") == expected


@pytest.mark.parametrize("has_it", [True, False])
def test_auto_takes_bf16_on_a_gpu_that_has_it_without_emulation(monkeypatch: pytest.MonkeyPatch, has_it: bool):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_it and not including_emulation)
    assert hardware.precision("auto", "cuda") == ("bf16-mixed" if has_it else "32-true")


def test_a_named_precision_is_kept_and_fp16_on_a_cpu_refused():
    assert hardware.precision("bf16-mixed", "cpu") == "bf16-mixed"
    assert hardware.precision("16-mixed", "cuda") == "16-mixed"
    with pytest.raises(ValueError, match="precision=16-mixed needs a GPU"):
        hardware.precision("16-mixed", "cpu")


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [hardware.device(name) for name in ("auto", "gpu", "cpu")] == ["cuda", "cuda", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert hardware.device("auto") == "cpu"
