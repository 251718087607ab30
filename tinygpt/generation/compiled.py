"""The step that decodes a token, captured once for each size of batch and cache."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tinygpt.generation.cache import KVCache
from tinygpt.model.gpt import GPT


def compiled_step(model: GPT, ids: Tensor, kv: KVCache) -> Tensor:
    """The model's logits of one token a row, (B, 1, V), on a captured cache; the first call takes a while.

    On a GPU they are valid until the next step, which writes in their place.

    Raises:
        RuntimeError: there is no C++ compiler.
    """
    try:
        return _compiled(ids.device.type)(model, ids, kv)
    except RuntimeError as error:
        if "InvalidCxxCompiler" not in str(error):
            raise
        raise RuntimeError("to compile a step takes a C++ compiler, such as g++; none was found") from error


@cache
def _compiled(device: str) -> Callable[[GPT, Tensor, KVCache], Tensor]:
    def step(model: GPT, ids: Tensor, kv: KVCache) -> Tensor:
        return model(ids, cache=kv)

    # A CUDA graph, or kernels called from C++, without Python in between.
    options: dict[str, Any] = {"triton.cudagraphs": True} if device == "cuda" else {"cpp_wrapper": True}
    return torch.compile(step, dynamic=False, options=options)
