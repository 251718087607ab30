"""Which device a run uses, and which precision that device is good at."""

from pathlib import Path

import torch


def device(accelerator: str) -> str:
    """The kind of device, "cpu", "cuda" or "mps", that Lightning takes for this accelerator."""
    if accelerator not in ("auto", "gpu"):
        return accelerator
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def precision(name: str, device: str) -> str:
    """`auto` becomes bf16-mixed where the hardware has bf16 arithmetic of its own, else 32-true; other names stay.

    Raises:
        ValueError: fp16 on a CPU: Lightning would train in bf16 instead, and say so in a warning alone.
    """
    if name.startswith("16") and device == "cpu":
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
