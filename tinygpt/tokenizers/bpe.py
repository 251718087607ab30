"""Byte-level BPE: the vocabulary starts as the 256 bytes, and the most frequent pair becomes the next entry."""

import json
import os
from collections.abc import Iterable, Iterator
from math import inf
from typing import Self

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tinygpt.tokenizers.base import END_OF_TEXT, Unknown, check_unknown, pieces, utf8
from tinygpt.tokenizers.library import PIECE, LibraryTokenizer


class BPETokenizer(LibraryTokenizer):
    """256 ids for the bytes, one for each merge of two ids, and the end of text last.

    The end of text is an entry of the model that no merge leads to, and no added token of the library, so that whoever
    loads the file encodes a written `<|endoftext|>` as text too.

    Source: Sennrich et al., 2016, on the bytes and within the words of Radford et al., 2019.
    """

    @classmethod
    def train(
        cls,
        documents: Iterable[str],
        vocab_size: int = 2048,
        train_bytes: int | None = 10**9,
        unknown: Unknown = "error",
    ) -> Self:
        """Learn the merges; the same documents give the same merges.

        Args:
            documents: the texts, read once, one after the other.
            vocab_size: how many ids to reach, all counted; a small text has no more pairs to merge before that.
            train_bytes: learn from the first so many bytes of text; None: from all, however long that takes.
            unknown: what becomes of half a surrogate pair, the one character without UTF-8 bytes: an "error", "skip"
                it, or "replace" it by a question mark.

        Raises:
            ValueError: vocab_size leaves no room for the bytes, train_bytes is not positive, or unknown is none of the
                three.
            UserError: a document holds half a surrogate pair, and `unknown` is "error".
        """
        if vocab_size < 257:
            raise ValueError(f"vocab_size must be at least 257, the bytes and the end of text, got {vocab_size}")
        if train_bytes is not None and train_bytes < 1:
            raise ValueError(f"train_bytes must be at least 1, or null for all, got {train_bytes}")
        check_unknown(unknown)
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # else a byte not seen here would vanish unsaid
            show_progress=False,
        )
        threads = os.environ["TOKENIZERS_PARALLELISM"]
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        try:
            library.train_from_iterator(_beginning(documents, train_bytes, unknown), trainer)
        finally:
            os.environ["TOKENIZERS_PARALLELISM"] = threads
        file = json.loads(library.to_str())
        vocabulary = file["model"]["vocab"]
        assert END_OF_TEXT not in vocabulary, "words end between < | and endoftext"
        vocabulary[END_OF_TEXT] = len(vocabulary)
        return cls(json.dumps(file, ensure_ascii=False, indent=2), END_OF_TEXT, unknown)


def _beginning(documents: Iterable[str], n_bytes: int | None, unknown: Unknown) -> Iterator[str]:
    """The documents' first n_bytes of text, whole pieces, so that no word is cut."""
    left = inf if n_bytes is None else n_bytes
    for text in documents:
        for piece in pieces(utf8(text, unknown).decode(), PIECE):
            if left <= 0:
                return
            left -= len(piece.encode())
            yield piece
