"""Masked self-attention: what may attend to what, the module, and one file for each kernel."""

from tinygpt.attention.kernel import Kernel
from tinygpt.attention.manual import Manual
from tinygpt.attention.masks import Mask
from tinygpt.attention.sdpa import SDPA
from tinygpt.attention.self_attention import SelfAttention

__all__ = ["SDPA", "Kernel", "Manual", "Mask", "SelfAttention"]
