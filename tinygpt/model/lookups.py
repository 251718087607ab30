"""What a model looks up instead of computing: the last few tokens in tables, and what followed them the last time.

Both go by token ids alone, cost next to no arithmetic, and are added to the token embeddings. What lies before a token
in its row is all they see, so that they are as causal as attention is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.linear import Linear

NOTHING = -1  # in place of an id, where there is no token
PRIME, FACTOR = 2**31 - 1, 1_000_003  # of the hash; their product fits into int64
STRIP = 256  # tokens that are compared with their row at once


class History(NamedTuple):
    """A row's ids, up to the tokens at hand.

    Attributes:
        ids: (B, S) int64; -1 where there is no token.
        places: (B, T) int64, where among them the tokens at hand lie, side by side.
        documents: (B, S) int64, the document of each token, whose tokens lie together; None: each row is one.
    """

    ids: Tensor
    places: Tensor
    documents: Tensor | None = None

    def before(self, n: int) -> Tensor:
        """(B, T, n) ids: each token's own, the one before it, and so on; -1 where its document has begun already."""
        places = self.places[..., None] - torch.arange(n, device=self.ids.device)
        exists = places >= 0
        flat = places.clamp(min=0).flatten(1)
        ids = self.ids.gather(1, flat).view_as(places)
        if self.documents is not None:
            documents = self.documents.gather(1, flat).view_as(places)
            exists = exists & (documents == documents[..., :1])
        return ids.where(exists, NOTHING)


class NgramEmbedding(nn.Module):
    """A vector for each pair of tokens, for each three, and so on, (B, T) → (B, T, C).

    Sequences share the rows of a table by their hash; the more rows, the fewer share one.

    Args:
        n_embd: width C of the model.
        rows: of the table of pairs, of the table of threes, and so on.
        dim: length of the vectors, which a matrix brings to C.
        dropout: share of the tokens that get no vector from a table, in training, drawn for each table by itself. From
            the second epoch on a table knows a small corpus by heart, and the model would learn to rely on that.

    Raises:
        ValueError: a size is not positive, or dropout is not in [0, 1).

    Source: Pagnoni et al., Byte Latent Transformer, 2024, section 3.2.1.
    """

    def __init__(self, n_embd: int, rows: Sequence[int], dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        if min(*rows, dim) < 1:
            raise ValueError(f"ngram_rows and ngram_dim must be at least 1, got {list(rows)} and {dim}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"ngram_dropout must be at least 0 and below 1, got {dropout}")
        self.dropout = dropout
        # A step changes few rows of many: their gradients are sparse.
        self.tables = nn.ModuleList(nn.Embedding(n, dim, sparse=True) for n in rows)
        self.proj = Linear(dim, n_embd, bias=False)

    def forward(self, history: History) -> Tensor:
        ids = history.before(len(self.tables) + 1) + 1  # what is missing is a 0
        key, total = ids[..., 0], torch.zeros((), device=ids.device)
        for i, table in enumerate(self.tables):
            assert isinstance(table, nn.Embedding)
            key = (key * FACTOR + ids[..., i + 1]) % PRIME
            # Of (B, T, dim) it drops whole vectors.
            total = total + F.dropout1d(table(key % table.num_embeddings), self.dropout, self.training)
        return self.proj(total)


class MatchEmbedding(nn.Module):
    """A vector for what followed the last time that the row had these last tokens, (B, T) → (B, T, C).

    Of all earlier places where a token's last ones stood before, that counts which has most of them in common, and of
    equal ones the latest: its next token, and how many they had in common, choose the vector. So names that a text has
    used once are known from then on. Its table has (longest + 1) · V rows, which suits small vocabularies.

    Args:
        vocab_size: V.
        n_embd: width C of the model.
        longest: tokens in common that are counted, at most 127.

    Raises:
        ValueError: longest is out of its range.

    Source: Mahoney, 2005, the match model of PAQ; Olsson et al., 2022, for heads that learn to do so.
    """

    def __init__(self, vocab_size: int, n_embd: int, longest: int) -> None:
        super().__init__()
        if not 1 <= longest <= 127:
            raise ValueError(f"match must lie between 1 and 127, or be 0 for none, got {longest}")
        self.vocab_size = vocab_size
        self.longest = longest
        self.table = nn.Embedding((longest + 1) * vocab_size, n_embd)

    def forward(self, history: History) -> Tensor:
        length, following = longest_match(history, self.longest)
        return self.table(length * self.vocab_size + following)


@torch.no_grad()
def longest_match(history: History, longest: int) -> tuple[Tensor, Tensor]:
    """For each token at hand the earlier place whose last tokens equal its own the furthest, the latest of equal ones.

    Args:
        history: the row.
        longest: tokens in common that are counted.

    Returns:
        (B, T) int64 each: how many tokens they have in common, and the id of the token behind that place. Both are 0
        where no place has even one.
    """
    ids, places, documents = history
    S = ids.shape[1]
    after = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], NOTHING)], dim=1)  # the token behind each place
    continues = (ids != NOTHING) & (after != NOTHING)
    if documents is not None:
        continues = continues & (documents == torch.cat([documents[:, 1:], documents[:, :1] - 1], dim=1))
    found = []
    for strip in places.split(STRIP, dim=1):
        # And those before it, for a place has a token more in common than the one before has with the one before.
        queries = strip[:, :1] + torch.arange(1 - longest, strip.shape[1], device=ids.device)
        at = queries.clamp(min=0)
        same = (ids.gather(1, at)[:, :, None] == ids[:, None]) & continues[:, None]
        same = same & (torch.arange(S, device=ids.device) < queries[..., None])
        if documents is not None:
            same = same & (documents.gather(1, at)[:, :, None] == documents[:, None])
        same = same.to(torch.int8)
        length = same
        for _ in range(longest - 1):
            longer = torch.ones_like(length)
            longer[:, 1:, 1:] += length[:, :-1, :-1]
            length = same * longer
        # The longest, and then the latest: one number orders both.
        best = (length[:, longest - 1 :].int() * S + torch.arange(S, dtype=torch.int32, device=ids.device)).amax(dim=2)
        found.append(best.long())
    best = torch.cat(found, dim=1)
    length = best // S
    return length, after.gather(1, best % S).where(length > 0, 0)
