"""A model and its tokenizer together: text in, text out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tinygpt import checkpoint, hardware
from tinygpt.generation.decoding import Decoder, Overflow
from tinygpt.generation.sampling import Sampling
from tinygpt.generation.scoring import Score, score
from tinygpt.generation.streaming import IncrementalDecoder, StopWatch
from tinygpt.model.gpt import GPT
from tinygpt.tokenizers import Tokenizer, Unknown


@dataclass
class Sample:
    """A continuation of a prompt.

    Attributes:
        prompt: the text that it continues.
        text: without the prompt, and without the stop that ended it.
        tokens: the ids that were drawn, but for the end of a text; those of a stop are among them.
        logprobs: of each, under the model itself, before any sampler; empty unless asked for.
        top_logprobs: for each the likeliest ids and their log-probabilities; empty unless asked for.
        finish_reason: "stop", at a stop; "eos", at the end of a text; "length", where there was no more room.
    """

    prompt: str
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: Literal["stop", "eos", "length"] | None = None


class Piece(NamedTuple):
    """Some more text of a sample; with its last piece `sample.finish_reason` is set."""

    number: int
    text: str
    sample: Sample


class TextGenerator:
    """Samples text; what `tinygpt.load` returns.

    Attributes:
        model: in evaluation mode.
        tokenizer: the one that the model was trained with.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def stream(
        self,
        prompts: str | Sequence[str],
        *,
        num_samples: int = 1,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        overflow: Overflow = "shift",
        seed: int = 0,
        use_cache: bool = True,
        n_top: int | None = None,
        compiled: bool = False,
        temperature: float = 0.8,
        **sampling: Any,
    ) -> Iterator[Piece]:
        """Text as it comes, of all prompts together: never half a character, and nothing of a stop.

        Args:
            prompts: one, or several; an empty one starts a new document.
            num_samples: continuations of each prompt, numbered one after the other.
            max_new_tokens: how many tokens to add at most, at least 1.
            stop: a string that ends a sample, or several.
            stop_ids: ids that end one.
            overflow, seed, use_cache, n_top, compiled: see `Decoder`.
            temperature, sampling: see `Sampling`.

        Raises:
            ValueError: an argument is out of its range.
            UserError: a prompt holds what the tokenizer does not know.
        """
        prompts, stop = ([x] if isinstance(x, str) else list(x) for x in (prompts, stop))
        for token in stop_ids:
            if not 0 <= token < self.tokenizer.vocab_size:
                raise ValueError(f"stop_ids names the id {token}; ids are 0 to {self.tokenizer.vocab_size - 1}")
        end_of_text = self.tokenizer.end_of_text
        ids = [self.tokenizer.encode(prompt).tolist() or [end_of_text] for prompt in prompts]
        decoder = Decoder(
            self.model,
            ids,
            max_new_tokens=max_new_tokens,
            num_samples=num_samples,
            sampling=Sampling(temperature=temperature, **sampling),
            overflow=overflow,
            seed=seed,
            use_cache=use_cache,
            n_top=n_top,
            compiled=compiled,
        )
        samples = [Sample(prompt) for prompt in prompts for _ in range(num_samples)]
        texts = [IncrementalDecoder(self.tokenizer) for _ in samples]
        watches = [StopWatch(stop) for _ in samples]
        running = set(range(len(samples)))

        def end(i: int, reason: Literal["stop", "eos", "length"]) -> Piece:
            text = watches[i].add(texts[i].flush())
            text += watches[i].flush()
            samples[i].finish_reason = "stop" if watches[i].stopped else reason
            samples[i].text += text
            running.discard(i)
            decoder.finish([i])
            return Piece(i, text, samples[i])

        while running:
            drawn = decoder.step()
            for i in sorted(decoder.full & running):
                yield end(i, "length")
            for i, token, logprob, top in drawn:
                if token == end_of_text:
                    yield end(i, "eos")
                    continue
                sample = samples[i]
                sample.tokens.append(token)
                if n_top is not None:
                    sample.logprobs.append(logprob)
                if n_top:
                    sample.top_logprobs.append(top)
                if token in stop_ids:
                    yield end(i, "stop")
                    continue
                text = watches[i].add(texts[i].add(token))
                sample.text += text
                if watches[i].stopped or len(sample.tokens) == max_new_tokens:
                    last = end(i, "length")
                    yield last._replace(text=text + last.text)
                else:
                    yield Piece(i, text, sample)

    def score(self, text: str, stride: int | None = None) -> Score:
        """How well the model foretells a text and its end; see `scoring.score`.

        Raises:
            ValueError: the stride is out of its range.
            UserError: the text holds what the tokenizer does not know.
        """
        end_of_text = self.tokenizer.end_of_text
        ids = [end_of_text, *self.tokenizer.encode(text).tolist(), end_of_text]
        return score(self.model, ids, len(text.encode("utf-8", "surrogatepass")), stride)

    def complete(self, prompts: str | Sequence[str], **settings: Any) -> list[Sample]:
        """Continuations of prompts, in their order; the settings are those of `stream`."""
        finished = {piece.number: piece.sample for piece in self.stream(prompts, **settings)}
        return [finished[i] for i in sorted(finished)]

    def samples(self, prompt: str = "", **settings: Any) -> list[str]:
        """Texts that continue one prompt; the settings are those of `stream`."""
        return [sample.text for sample in self.complete([prompt], **settings)]

    def generate(self, prompt: str = "", **settings: Any) -> str:
        """One continuation; the settings are those of `stream`."""
        if settings.get("num_samples", 1) != 1:
            raise ValueError("generate gives one text; samples gives several")
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
