"""Which device there is, and which precision it is good at."""

from pathlib import Path

import torch


def device(name: str) -> str:
    """The kind of device, "cpu", "cuda" or "mps": "auto" and "gpu" become what there is.

    Raises:
        ValueError: there is no such device, or none here.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in ("auto", "gpu", *here):
        raise ValueError(f"the device must be auto, cpu, gpu, cuda or mps, got {name!r}")
    if name == "gpu":
        here.pop("cpu")
    found = [kind for kind, is_here in here.items() if is_here and name in ("auto", "gpu", kind)]
    if not found:
        raise ValueError(f"there is no {name} here; auto takes what there is")
    return found[0]


def precision(name: str | int, device: str) -> str:
    """`auto` becomes bf16-mixed where the hardware has bf16 arithmetic of its own, else 32-true; other names stay.

    Raises:
        ValueError: fp16 on a CPU: Lightning would train in bf16 instead, and say so in a warning alone.
    """
    name = str(name)
    if name in ("16", "16-mixed", "16-true") and device == "cpu":
        raise ValueError(f"precision={name} needs a GPU; on a CPU use auto, 32-true or bf16-mixed")
    if name != "auto":
        return name
    return "bf16-mixed" if _has_bf16(device) else "32-true"


def _has_bf16(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":  # without one of these a CPU converts to fp32 and back around every operation
        cpuinfo = Path("/proc/cpuinfo")
        flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False
