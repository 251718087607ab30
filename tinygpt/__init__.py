"""tinygpt: small decoder-only language models, from text to text.

    attention    masked self-attention: masks as descriptions, the module, the kernels
    model        GPT and its families, blocks, initialisation, the loss
    tokenizers   text to ids and back
    data         corpora, token files, layouts, batches
    optim        optimizers and schedules
    training     the LightningModule and its callbacks
    checkpoint   what a checkpoint holds and how it is read
    generation   KV cache, decoding, sampling
    interop      to and from Hugging Face's formats

Shapes are written with one legend everywhere: B batch, T queries, S keys, C channels (n_embd), H heads, D head size,
V vocabulary.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinygpt.generation.text import load

__version__ = "0.1.0"
__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`load` brings torch with it, so it is imported when it is first asked for."""
    if name == "load":
        from tinygpt.generation.text import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
