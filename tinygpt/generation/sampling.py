"""From the logits of the next token to the next token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from tinygpt.generation.samplers.bias import logit_bias
from tinygpt.generation.samplers.frequency import frequency_penalty
from tinygpt.generation.samplers.min_p import keep_min_p
from tinygpt.generation.samplers.no_repeat import no_repeat_ngram
from tinygpt.generation.samplers.presence import presence_penalty
from tinygpt.generation.samplers.repetition import repetition_penalty
from tinygpt.generation.samplers.top_k import keep_top_k
from tinygpt.generation.samplers.top_p import keep_top_p


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. The samplers act in the order of these fields; each default changes nothing.

    Args:
        repetition_penalty: above 0; see `repetition_penalty`, and so on.
        presence_penalty: any number.
        frequency_penalty: any number.
        no_repeat_ngram: at least 1; None: off.
        logit_bias: what is added to which id's logit.
        temperature: divides the logits; 0 takes the largest, without chance and without what follows.
        top_k: at least 1; None: off.
        top_p: above 0 and at most 1.
        min_p: at least 0 and at most 1.

    Raises:
        ValueError: one is out of its range.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed, rule in (
            ("repetition_penalty", 0 < self.repetition_penalty < inf, "above 0 and finite"),
            ("presence_penalty", -inf < self.presence_penalty < inf, "finite"),
            ("frequency_penalty", -inf < self.frequency_penalty < inf, "finite"),
            ("no_repeat_ngram", self.no_repeat_ngram is None or self.no_repeat_ngram >= 1, "at least 1"),
            ("logit_bias", all(value < inf for value in self.logit_bias.values()), "numbers below infinity"),
            ("temperature", 0 <= self.temperature < inf, "at least 0 and finite"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "at least 0 and at most 1"),
        ):
            if not allowed:
                raise ValueError(f"{name} must be {rule}, got {getattr(self, name)}")

    def next_token(
        self, logits: Tensor, uniform: Sequence[float], prompts: Sequence[Sequence[int]], new: Sequence[Sequence[int]]
    ) -> list[int]:
        """Draw one token a row.

        Args:
            logits: (B, V), finite.
            uniform: B numbers in [0, 1): the draw inverts the cumulative probability there, so a row's token depends
                on its own number alone.
            prompts: each row's prompt.
            new: what each row has drawn so far.

        Returns:
            B ids. The draw is made on the CPU, where it is the same for every device.

        Raises:
            ValueError: a logit is NaN or infinite.
        """
        logits = logits.cpu().double()
        if not isfinite(logits.sum().item()):  # of doubles, whose sum is finite where all of them are
            raise ValueError("the model's logits are not finite: its weights are damaged or have diverged")
        if self.repetition_penalty != 1 or self.no_repeat_ngram is not None:
            seen = [[*prompt, *drawn] for prompt, drawn in zip(prompts, new, strict=True)]
            logits = repetition_penalty(logits, seen, self.repetition_penalty)
        if self.presence_penalty:
            logits = presence_penalty(logits, new, self.presence_penalty)
        if self.frequency_penalty:
            logits = frequency_penalty(logits, new, self.frequency_penalty)
        if self.no_repeat_ngram is not None:
            logits = no_repeat_ngram(logits, seen, self.no_repeat_ngram)
        if self.logit_bias:
            logits = logit_bias(logits, self.logit_bias)
        if self.temperature == 0:
            return logits.argmax(dim=-1).tolist()
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature  # the largest is 0: nothing overflows
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p > 0:
            logits = keep_min_p(logits, self.min_p)
        cumulative = logits.exp().cumsum(dim=-1)  # (B, V), of probabilities that are not yet divided by their sum
        drawn = torch.tensor(uniform, dtype=torch.float64)[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the number: never one of probability 0.
        return torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1).tolist()
