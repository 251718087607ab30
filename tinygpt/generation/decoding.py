"""The decoding loop: prefill once, then one token at a time, for prompts of any lengths together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from tinygpt.generation.cache import KVCache
from tinygpt.generation.compiled import compiled_step
from tinygpt.generation.sampling import Sampling
from tinygpt.model.gpt import GPT

Overflow = Literal["shift", "crop", "stop"]
PREFILL = 2**12  # tokens of a prompt, of all rows together, that go through the model at once


class Drawn(NamedTuple):
    """One new token of a row.

    Attributes:
        row: which, counted over all prompts and their samples.
        token: its id.
        logprob: its log-probability under the model itself, before any sampler; NaN if it was not asked for.
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
    def last(self) -> int:
        return (self.new or self.prompt)[-1]

    @property
    def visible(self) -> list[int]:
        return [*self.prompt, *self.new][self.begin :]


def _real(lengths: Sequence[int], width: int, device: torch.device) -> Tensor | None:
    """(B, width) bool, True on as many places as each row has tokens, in front; None where all have all."""
    if min(lengths) == width:
        return None
    return torch.arange(width, device=device) < torch.tensor(lengths, device=device)[:, None]


class Decoder:
    """Continues prompts, a token for each at a time.

    The model sees block_size tokens at most. When a row has more, it goes on by the rule of `overflow`: "shift" drops
    the oldest half of what the model sees, so that its cache is filled anew once in block_size / 2 tokens; "crop" drops
    one token each time, after which every position has moved and no cache helps; with "stop" the row has ended. A model
    without a `max_length` has nothing to "shift": its cache forgets what no window reaches any more.

    Args:
        model: in evaluation mode.
        prompts: ids, at least one each; of a longer prompt the last block_size are seen, unless nothing is to shift.
        max_new_tokens: after so many a row has ended; at least 1.
        num_samples: continuations of each prompt, which share the work on it.
        sampling: how tokens are drawn.
        overflow: what happens past block_size.
        seed: with a sample's number among those of its prompt all that its draws depend on.
        use_cache: keep keys and values; without, everything that is seen is computed for each token, to the same
            result.
        n_top: how many of the likeliest tokens to name with each; None: no log-probabilities at all.
        compiled: capture the step that decodes a token, which takes a while; on a GPU as a CUDA graph. Ended rows stay.

    Attributes:
        full: rows that "stop" has ended, before their next token.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        num_samples: int = 1,
        sampling: Sampling | None = None,
        overflow: Overflow = "shift",
        seed: int = 0,
        use_cache: bool = True,
        n_top: int | None = None,
        compiled: bool = False,
    ) -> None:
        for name, value, least in (
            ("max_new_tokens", max_new_tokens, 1),
            ("num_samples", num_samples, 1),
            ("seed", seed, 0),
            ("n_top", n_top or 0, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow must be one of {', '.join(get_args(Overflow))}, got {overflow!r}")
        if compiled and not use_cache:
            raise ValueError("a compiled step needs the cache; compile, or do without the cache")
        if not all(len(prompt) for prompt in prompts):
            raise ValueError("a prompt must have at least one token")
        self.model = model
        self.max_new_tokens = max_new_tokens
        self.num_samples = num_samples
        self.sampling = sampling or Sampling()
        self.overflow = overflow
        self.use_cache = use_cache
        self.n_top = n_top
        self.compiled = compiled
        self.device = model.token_embedding.weight.device
        self.full: set[int] = set()
        self._limit = model.max_length if overflow == "shift" else model.block_size
        self._ended: set[int] = set()
        self._rows = [
            _Row(
                number=i * num_samples + j,
                prompt=list(prompt),
                uniform=np.random.default_rng([seed, j]),
                begin=int(max(0, len(prompt) - self._limit)),
            )
            for i, prompt in enumerate(prompts)
            for j in range(num_samples)
        ]
        longest = max((len(row) - row.begin for row in self._rows), default=0)
        self._capacity = self._limit if compiled else min(self._limit, longest + max_new_tokens)
        self._cache: KVCache | None = None

    @torch.inference_mode()
    def step(self) -> list[Drawn]:
        """A token more for each row that has not ended.

        Raises:
            ValueError: the model's logits are not finite.
        """
        self._make_room()
        rows = [row for row in self._rows if row.number not in self._ended]
        if not rows:
            return []
        logits = self._decode() if self.use_cache else self._recompute()
        if len(rows) < len(self._rows):
            logits = logits[[i for i, row in enumerate(self._rows) if row.number not in self._ended]]
        uniform = [row.uniform.random() for row in rows]
        tokens = self.sampling.next_token(logits, uniform, [row.prompt for row in rows], [row.new for row in rows])
        for row, token in zip(rows, tokens, strict=True):
            row.new.append(token)
            if len(row.new) == self.max_new_tokens:
                self._ended.add(row.number)
        if self.n_top is None:
            return [Drawn(row.number, token, nan, []) for row, token in zip(rows, tokens, strict=True)]
        logprobs = logits.float().log_softmax(dim=-1)
        own = logprobs.gather(1, torch.tensor(tokens, device=self.device)[:, None])[:, 0].tolist()
        best = logprobs.topk(min(self.n_top, logprobs.shape[1]), dim=-1)
        tops = [list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        numbers = [row.number for row in rows]
        return [Drawn(*of) for of in zip(numbers, tokens, own, tops, strict=True)]

    def finish(self, numbers: Collection[int]) -> None:
        """End rows: they draw no more, and leave the batch when half of it has ended."""
        self._ended |= set(numbers)

    def _make_room(self) -> None:
        """See to it that every row's next token fits into what the model sees, and that ended rows do not stay long."""
        over = [row for row in self._rows if len(row) - row.begin > self._limit and row.number not in self._ended]
        for row in over:
            row.begin = len(row) - self._keep
        if self.overflow == "stop":
            self.full |= {row.number for row in over}
            self._ended |= self.full
        kept = [i for i, row in enumerate(self._rows) if row.number not in self._ended]
        if not kept or not self.use_cache:
            self._rows = [self._rows[i] for i in kept]
            return
        if self._cache is None:
            return
        if 2 * len(kept) <= len(self._rows) and not self.compiled:  # so seldom a copy of the cache is worth it
            self._rows = [self._rows[i] for i in kept]
            self._cache.select(kept)
        # Ended rows fill up with the others, and go with them so that lengths stay alike.
        filled = [i for i, length in enumerate(self._cache.lengths) if length == self._limit]
        if filled:
            ended = [0] * (self._keep - 1)
            rows = [self._rows[i] for i in filled]
            self._cache.put(
                filled, self._prefill([ended if row.number in self._ended else row.visible[:-1] for row in rows])
            )

    @property
    def _keep(self) -> int:
        """How many tokens of a row that has too many are kept."""
        size = self.model.block_size
        return {"shift": max(1, size // 2), "crop": size, "stop": 1}[self.overflow]

    def _decode(self) -> Tensor:
        """(B, V), of every row that is in the batch."""
        if self._cache is None:
            self._cache = self._prefill([row.visible[:-1] for row in self._rows[:: self.num_samples]])
            if self.num_samples > 1:
                self._cache.select([i for i in range(len(self._cache.lengths)) for _ in range(self.num_samples)])
        ids = torch.tensor([[row.last] for row in self._rows], device=self.device)
        if self._cache.places is None:
            logits = self.model(ids, cache=self._cache)
            if self.compiled:
                self._cache.capture()
        else:
            logits = compiled_step(self.model, ids, self._cache)
            self._cache.advance()
        return logits[:, -1]

    def _prefill(self, rows: list[list[int]]) -> KVCache:
        """A cache of these tokens."""
        prefilled = KVCache(self.model, self._capacity)
        prefilled.lengths = [0] * len(rows)
        chunk = max(1, PREFILL // len(rows))
        for begin in range(0, max(map(len, rows)), chunk):
            pieces = [row[begin : begin + chunk] for row in rows]
            T = max(map(len, pieces))
            ids = torch.tensor([piece + [0] * (T - len(piece)) for piece in pieces], device=self.device)
            padding = _real([len(piece) for piece in pieces], T, self.device)
            self.model(ids, padding=padding, cache=prefilled, last_only=True)
        return prefilled

    def _recompute(self) -> Tensor:
        """The same as `_decode`, without a cache: all that is seen, in rows that end together."""
        seen = [row.visible for row in self._rows]
        width = max(map(len, seen))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in seen], device=self.device)
        padding = _real([len(row) for row in seen], width, self.device)
        padding = None if padding is None else padding.flip(1)
        return self.model(ids, padding=padding, last_only=True)[:, -1]
