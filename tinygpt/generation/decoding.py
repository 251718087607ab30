"""The decoding loop: prefill once, then one token at a time, for prompts of any lengths together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tinygpt.generation.cache import KVCache
from tinygpt.generation.sampling import Sampling
from tinygpt.model.gpt import GPT

Overflow = Literal["shift", "crop", "stop"]


class Drawn(NamedTuple):
    """One new token of a row.

    Attributes:
        row: which, counted over all prompts and their samples.
        token: its id.
        logprob: its log-probability under the model itself, before any sampler.
        top: the likeliest ids and their log-probabilities, the likeliest first; as many as were asked for.
    """

    row: int
    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass
class _Row:
    number: int
    prompt: list[int]
    uniform: np.random.Generator  # its own: what else is in the batch draws from others
    begin: int  # the first token that the model sees
    new: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.new)

    @property
    def visible(self) -> list[int]:
        return [*self.prompt, *self.new][self.begin :]


class Decoder:
    """Continues prompts, a token for each at a time.

    The model sees block_size tokens at most. When a row has more, it goes on by the rule of `overflow`: "shift" drops
    the oldest half of what the model sees, so that the cache is filled anew once in block_size / 2 tokens; "crop" drops
    one token each time, after which every position has moved and no cache helps; with "stop" the row has ended.

    Args:
        model: in evaluation mode.
        prompts: ids, at least one each; of a longer prompt the last block_size are seen.
        num_samples: continuations of each prompt, which share the work on it.
        sampling: how tokens are drawn.
        overflow: what happens past block_size.
        seed: with a sample's number among those of its prompt all that its draws depend on.
        use_cache: keep keys and values; without, everything that is seen is computed for each token, to the same
            result.
        n_top: how many of the likeliest tokens to name with each.

    Attributes:
        full: rows that "stop" has ended, before their next token.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        *,
        num_samples: int = 1,
        sampling: Sampling | None = None,
        overflow: Overflow = "shift",
        seed: int = 0,
        use_cache: bool = True,
        n_top: int = 0,
    ) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if not all(len(prompt) for prompt in prompts):
            raise ValueError("a prompt must have at least one token")
        self.model = model
        self.sampling = sampling or Sampling()
        self.overflow = overflow
        self.use_cache = use_cache
        self.n_top = n_top
        self.device = model.token_embedding.weight.device
        self.full: set[int] = set()
        self._ended: set[int] = set()
        self._rows = [
            _Row(
                number=i * num_samples + j,
                prompt=list(prompt),
                uniform=np.random.default_rng([seed, j]),
                begin=max(0, len(prompt) - model.block_size),
            )
            for i, prompt in enumerate(prompts)
            for j in range(num_samples)
        ]
        self._shared = num_samples  # rows that are alike until their first token
        self._cache: KVCache | None = None
        self._padding: Tensor | None = None  # (B, block_size) bool, of the cache's tokens

    @torch.inference_mode()
    def step(self) -> list[Drawn]:
        """A token more for each row that has not ended.

        Raises:
            ValueError: the model's logits are not finite.
        """
        self._make_room()
        if not self._rows:
            return []
        logits = self._logits()
        rows = self._running()
        if len(rows) < len(self._rows):
            logits = logits[[i for i, row in enumerate(self._rows) if row.number not in self._ended]]
        uniform = torch.tensor([row.uniform.random() for row in rows], dtype=torch.float64)
        prompts, new = [row.prompt for row in rows], [row.new for row in rows]
        tokens = self.sampling.next_token(logits, uniform, prompts, new).tolist()
        logprobs = logits.float().log_softmax(dim=-1)
        index = torch.tensor(tokens, device=self.device)
        own = logprobs.gather(1, index[:, None])[:, 0].tolist()
        tops: list[list[tuple[int, float]]] = [[] for _ in tokens]
        if self.n_top:
            best = logprobs.topk(min(self.n_top, logprobs.shape[1]), dim=-1)
            tops = [
                list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        for row, token in zip(rows, tokens, strict=True):
            row.new.append(token)
        return [Drawn(*of) for of in zip([row.number for row in rows], tokens, own, tops, strict=True)]

    def finish(self, numbers: Collection[int]) -> None:
        """End rows: they draw no more, and leave the batch when half of it has ended or its cache is made anew."""
        self._ended |= set(numbers)

    def _running(self) -> list[_Row]:
        return [row for row in self._rows if row.number not in self._ended]

    def _make_room(self) -> None:
        """See to it that every row's tokens fit into what the model sees, and that ended rows do not stay for long."""
        size = self.model.block_size
        over = [row for row in self._running() if len(row) - row.begin > size]
        if over and self.overflow == "stop":
            self.full |= {row.number for row in over}
            self.finish(self.full)
        elif over:
            keep = size if self.overflow == "crop" else max(1, size // 2)
            for row in over:
                row.begin = len(row) - keep
            self._cache = None
        if self._cache is not None and self._cache.length == size:  # filled by a row that has ended meanwhile
            self._cache = None
        kept = [i for i, row in enumerate(self._rows) if row.number not in self._ended]
        if len(kept) < len(self._rows) and (self._cache is None or 2 * len(kept) <= len(self._rows)):
            self._rows = [self._rows[i] for i in kept]
            self._shared = 1
            if self._cache is not None and kept:  # whose copying is worth it once in so many rows
                self._cache.select(kept)
                self._padding = None if self._padding is None else self._padding[kept]

    def _logits(self) -> Tensor:
        """(B, V), of every row that is in the batch."""
        if self._cache is None:
            return self._prefill()
        ids = torch.tensor([[row.new[-1]] for row in self._rows], device=self.device)
        end = self._cache.length + 1
        padding = None if self._padding is None else self._padding[:, :end]
        return self.model(ids, padding=padding, cache=self._cache, last_only=True)[:, -1]

    def _prefill(self) -> Tensor:
        """All that is seen, in rows that end together; before their first token samples of a prompt share the work."""
        fresh = not any(row.new for row in self._rows)
        rows = self._rows[:: self._shared] if fresh else self._rows
        seen = [row.visible for row in rows]
        width = max(map(len, seen))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in seen], device=self.device)
        self._padding = padding = None
        if any(len(row) < width for row in seen):
            self._padding = torch.ones(len(rows), self.model.block_size, dtype=torch.bool, device=self.device)
            for i, row in enumerate(seen):
                self._padding[i, : width - len(row)] = False
            padding = self._padding[:, :width]
        cache = KVCache(self.model) if self.use_cache else None
        logits = self.model(ids, padding=padding, cache=cache, last_only=True)[:, -1]
        if fresh and self._shared > 1:
            again = [i for i in range(len(rows)) for _ in range(self._shared)]
            logits = logits[again]
            if self._padding is not None:
                self._padding = self._padding[again]
            if cache is not None:
                cache.select(again)
        self._cache = cache
        return logits
