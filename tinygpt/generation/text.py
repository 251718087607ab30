"""A model and its tokenizer together: text in, text out."""

from pathlib import Path

import torch

from tinygpt import checkpoint
from tinygpt.generation.decoding import generate
from tinygpt.model.gpt import GPT
from tinygpt.tokenizers import Tokenizer, Unknown


class TextGenerator:
    """Samples text; what `tinygpt.load` returns.

    Attributes:
        model: in evaluation mode.
        tokenizer: the one that the model was trained with.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def samples(
        self,
        prompt: str = "",
        *,
        num_samples: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        use_cache: bool = True,
    ) -> list[str]:
        """Continuations of a prompt, without it; an empty prompt starts a new document.

        Raises:
            ValueError: an argument is out of its range.
            UserError: the prompt holds what the tokenizer does not know.
        """
        for name, value in (("num_samples", num_samples), ("max_new_tokens", max_new_tokens), ("top_k", top_k)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
        ids = self.tokenizer.encode(prompt)
        rows = generate(
            self.model,
            torch.tensor(ids.tolist() or [self.tokenizer.end_of_text]),
            max_new_tokens=max_new_tokens,
            end_of_text=self.tokenizer.end_of_text,
            num_samples=num_samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            use_cache=use_cache,
        )
        return [self.tokenizer.decode(row) for row in rows]

    def generate(self, prompt: str = "", **settings) -> str:
        """One continuation; the settings are those of `samples`."""
        return self.samples(prompt, **settings)[0]


def load(path: str | Path | None = None, *, device: str = "auto", unknown: Unknown = "error") -> TextGenerator:
    """A trained model with its tokenizer, ready to sample.

    Args:
        path: a checkpoint, or a run's directory (its best checkpoint, else its last); None: the newest run's.
        device: "cpu", "cuda", "mps", or "auto": a GPU where there is one.
        unknown: what becomes of prompt text that the tokenizer has no ids for: "error", "skip" or "replace".

    Raises:
        UserError: there is no such checkpoint, or the file is not one.
        RuntimeError: there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    contents = checkpoint.read(checkpoint.find(Path(path).expanduser() if path is not None else None))
    contents.tokenizer.unknown = unknown
    return TextGenerator(contents.model.to(device), contents.tokenizer)
