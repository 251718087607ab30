"""A model and its tokenizer together: text in, text out."""

from pathlib import Path
from typing import Any

import torch

from tinygpt import checkpoint, hardware
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

    def generate(self, prompt: str = "", **settings: Any) -> str:
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
        ValueError: there is no such device, or unknown is none of the three.
    """
    contents = checkpoint.read(checkpoint.find(Path(path).expanduser() if path is not None else None))
    tokenizer = type(contents.tokenizer)(**contents.tokenizer.config | {"unknown": unknown})
    return TextGenerator(contents.model.to(hardware.device(device)), tokenizer)
