"""The keys and values of the tokens so far, so that each new token costs one token's work."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import torch
from torch import Tensor

from tinygpt.attention.masks import Mask
from tinygpt.model.gpt import GPT
from tinygpt.model.lookups import NOTHING, History


class Slots:
    """Where the layers that share a mask keep their tokens.

    The token at place p of a row is in slot p. Where a window lets only the last tokens be seen, and the global ones,
    there are slots for those alone: behind the global tokens the rest take turns, in a rolling buffer.

    Args:
        mask: of a pass over all tokens.
        capacity: places of a row.

    Source: Jiang et al., 2023 (Mistral 7B), section 2, for the rolling buffer.
    """

    def __init__(self, mask: Mask, capacity: float) -> None:
        self.mask = mask
        self.first = mask.n_global
        window = mask.window if mask.random is None else None
        needed = capacity if window is None else mask.n_global + window
        self.count = int(min(needed, capacity))
        self.is_whole = self.count == needed
        self.turns = max(1, self.count - self.first)
        # For the next tokens: what is done with their keys, and with their values; and what they may see of the result.
        self.store: Callable[[Tensor, Tensor], Tensor]
        self.seen: Mask

    def slot(self, place: int) -> int:
        return place if place < self.count else self.first + (place - self.first) % self.turns

    def extend(self, start: int, T: int, ends: Sequence[int]) -> None:
        """Make ready for the tokens at places start to start + T - 1, of which each row keeps those before its end."""
        if T == 1 and len(set(ends)) == 1:
            self.store = partial(self._side_by_side, self.slot(start), min(start + 1, self.count))
            # All that is kept is seen, but for random blocks.
            self.seen = Mask(causal=False) if self.mask.random is None else replace(self.mask, start=start)
        elif start + T <= self.count:
            # What is behind a row's end lies where its next tokens will.
            self.store = partial(self._side_by_side, start, start + T)
            self.seen = replace(self.mask, start=start)
        else:
            self.store = partial(self._in_turn, start, ends)
            self.seen = replace(self.mask, start=min(start, self.count))

    def extend_each(self, places: Tensor, end: float) -> None:
        """Make ready for a token a row, each at its own place (B,), all before the end."""
        n_seen = int(min(end, self.count))
        turn = self.first + (places - self.first) % self.turns
        self.store = partial(self._each_its_own, places.where(places < self.count, turn), n_seen)
        mask = Mask() if self.mask.random is None else self.mask
        seen = mask.sees(torch.zeros_like(places)[:, None], places[:, None], torch.arange(n_seen, device=places.device))
        self.seen = Mask(causal=False, padding=seen, finite=True)

    def _side_by_side(self, slot: int, n_seen: int, old: Tensor, new: Tensor) -> Tensor:
        old[:, :, slot : slot + new.shape[2]] = new
        return old[:, :, :n_seen]

    def _each_its_own(self, slots: Tensor, n_seen: int, old: Tensor, new: Tensor) -> Tensor:
        old[torch.arange(len(slots), device=slots.device), :, slots] = new[:, :, 0]
        return old[:, :, :n_seen]

    def _in_turn(self, start: int, ends: Sequence[int], old: Tensor, new: Tensor) -> Tensor:
        """Some of the new tokens push others out, which the first of the new ones still see."""
        seen = torch.cat([self._in_order(start, old), new], dim=2)
        slots = torch.arange(self.count, device=new.device)
        last = torch.tensor(ends, device=new.device)[:, None] - 1
        # The newest place that a slot may hold; (B, count).
        places = slots.where(slots < self.first, last - (last - slots) % self.turns)
        index = places - start
        is_new = (index >= 0) & (index < new.shape[2])
        index = index.clamp(0, new.shape[2] - 1)[:, None, :, None].expand_as(old)
        old.copy_(new.gather(2, index).where(is_new[:, None, :, None], old))
        return seen

    def _in_order(self, start: int, old: Tensor) -> Tensor:
        if start <= self.count:
            return old[:, :, :start]
        oldest = self.slot(start) - self.first
        return torch.cat([old[:, :, : self.first], old[:, :, self.first :].roll(-oldest, dims=2)], dim=2)


class LayerCache:
    """One layer's part: (B, H, slots, D) for keys and for values."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.k = self.v = torch.empty(0)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, D) behind what is stored; return all that may be seen, (B, H, S, D), by views if possible."""
        if self.k.numel() == 0:
            # In the dtype that keys have (under autocast not the weights'), and zeroed: a NaN left in memory would
            # reach the output.
            B, H, _, D = k.shape
            self.k, self.v = k.new_zeros(B, H, self.slots.count, D), v.new_zeros(B, H, self.slots.count, D)
        return self.slots.store(self.k, k), self.slots.store(self.v, v)


class KVCache:
    """Room for a batch's tokens in all layers of a model, taken once.

    Each row has a length of its own. Rows of one length may be extended by any number of tokens; of others, and of
    chunks in which some rows end sooner, see `extend`. Where a model has no `max_length`, a row may go on for ever.

    Args:
        model: whose `forward` is given the cache.
        capacity: tokens of the longest row; None: as many as the model can see.

    Attributes:
        lengths: tokens of each row; empty before the first ones.
        places: (B,), the same on the device, once captured.
        ids: (B, capacity), of each row's tokens and -1 behind them, where the model looks ids up; else empty.
        history: of the tokens of the last `extend`, in such a model.
    """

    def __init__(self, model: GPT, capacity: float | None = None) -> None:
        self.capacity = model.max_length if capacity is None else capacity
        masks = model.layer_masks(Mask())
        slots = {id(mask): Slots(mask, self.capacity) for mask in masks}
        self.slots = list(slots.values())
        self.layers = [LayerCache(slots[id(mask)]) for mask in masks]
        self.endless = model.max_length == inf and all(slots.is_whole for slots in self.slots)
        self.lengths: list[int] = []
        self.places: Tensor | None = None
        self.keeps_ids = len(model.lookups) > 0
        self.ids = torch.empty(0, 0, dtype=torch.int64)
        self.history: History

    def extend(self, ids: Tensor, padding: Tensor | None = None) -> tuple[Tensor, list[Mask]]:
        """Make room for tokens that come behind what is stored; for the model to call.

        Args:
            ids: (B, T).
            padding: (B, T) bool, True on real tokens, which are in front: the rest leaves no trace. Rows with any must
                be the longest so far.

        Returns:
            The positions of the tokens, (T,) or (B, T); and for each layer what of the keys that `append` returns they
            may see.

        Raises:
            ValueError: there is no such room, or rows of different lengths are given several tokens.
        """
        B, T = ids.shape
        if self.places is not None:
            if T > 1 or padding is not None:
                raise ValueError(f"a captured cache takes one token a row, got {T}")
            self._keep(ids, self.places[:, None], self.capacity)
            return self._extend_each(self.places, self.capacity)
        lengths = self.lengths or [0] * B
        start, end = max(lengths), max(lengths) + T
        self._check_room(end)
        counts = [T] * B
        if padding is not None:
            counts = padding.sum(dim=1).tolist()
            if not torch.equal(padding, torch.arange(T, device=ids.device) < padding.sum(dim=1, keepdim=True)):
                raise ValueError("padding must lie behind a row's tokens where there is a cache")
        if padding is None and T == 1 and min(lengths) < start:
            positions, masks = self._extend_each(torch.tensor(lengths, device=ids.device), end)
        elif any(length < start for length, count in zip(lengths, counts, strict=True) if count):
            raise ValueError(f"rows of different lengths take one token at a time, got {T}")
        else:
            positions = torch.arange(start, end, device=ids.device)
            ends = [length + count for length, count in zip(lengths, counts, strict=True)]
            for slots in self.slots:
                slots.extend(start, T, ends)
            masks = [layer.slots.seen for layer in self.layers]
        self.lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        self._keep(ids if padding is None else ids.where(padding, NOTHING), positions.expand(B, T), end)
        return positions, masks

    def _keep(self, ids: Tensor, places: Tensor, end: float) -> None:
        """For the model's lookups, the ids at these places (B, T), the last of which is before the end."""
        if not self.keeps_ids:
            return
        if not self.ids.numel():
            self.ids = ids.new_full((len(ids), int(self.capacity)), NOTHING)
        self.ids.scatter_(1, places, ids)
        self.history = History(self.ids[:, : int(end)], places)

    def _check_room(self, end: int) -> None:
        if end > self.capacity and not self.endless:
            raise ValueError(f"the cache has room for {self.capacity} tokens, got {end}")

    def _extend_each(self, places: Tensor, end: float) -> tuple[Tensor, list[Mask]]:
        for slots in self.slots:
            slots.extend_each(places, end)
        return places[:, None], [layer.slots.seen for layer in self.layers]

    def capture(self) -> None:
        """From now on every step looks the same, a token a row: it looks at all slots, and lengths are on the device.

        So a step can be compiled, or be a CUDA graph, which has its tensors at fixed addresses. `advance` is to be
        called after each. There are tokens already.
        """
        self.places = torch.tensor(self.lengths, device=self.layers[0].k.device)
        for tensor in (self.places, self.ids, *(tensor for layer in self.layers for tensor in (layer.k, layer.v))):
            torch._dynamo.mark_static_address(tensor, guard=False)

    def advance(self) -> None:
        """Count the token that each row was given by a captured step.

        Raises:
            ValueError: there was no room for it.
        """
        self._check_room(max(self.lengths) + 1)
        self.lengths = [length + 1 for length in self.lengths]
        assert self.places is not None
        self.places += 1

    def select(self, rows: list[int]) -> None:
        """Keep these rows of the batch, in this order; one may come several times."""
        self.lengths = [self.lengths[row] for row in rows]
        if self.places is not None:
            self.places = self.places[rows]
        if self.ids.numel():
            self.ids = self.ids[rows]
        for layer in self.layers:
            if layer.k.numel():
                index = torch.tensor(rows, device=layer.k.device)
                layer.k, layer.v = layer.k[index], layer.v[index]

    def put(self, rows: list[int], other: "KVCache") -> None:
        """Give rows of the batch what the rows of another cache of this capacity hold."""
        for row, length in zip(rows, other.lengths, strict=True):
            self.lengths[row] = length
        if self.places is not None:
            self.places.copy_(torch.tensor(self.lengths))
        if self.keeps_ids:
            self.ids[rows] = other.ids if other.ids.numel() else NOTHING
        for layer, new in zip(self.layers, other.layers, strict=True):
            if new.k.numel():
                index = torch.tensor(rows, device=new.k.device)
                layer.k[index], layer.v[index] = new.k, new.v
