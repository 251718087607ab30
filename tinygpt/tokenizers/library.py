"""A `tokenizer.json` of the `tokenizers` library as tinygpt's tokenizers answer: what `bpe` and `pretrained` share."""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from tinygpt.errors import UserError
from tinygpt.tokenizers.base import Unknown, check_unknown, pieces, utf8

# Threads of the library do not survive a fork, and it warns of that; processes are what encodes in parallel.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PIECE = 2**16  # characters that the library is given at once: it takes a hundred bytes of memory for each token
KEPT = 2**21  # characters of words whose ids are remembered, in some tens of MB
# Safe cuts beyond those of `last_safe_cut`, as far as ASCII shows them: before what follows letters, and before letters
# that follow punctuation, unless that is an apostrophe, which may start a contraction.
_WORD_ENDS = re.compile(r"(?<=\S)(?=[ \n])|(?<=[A-Za-z])(?=[!-/:-@\[-`{-~])|(?<=[!-&(-/:-@\[-`{-~])(?=[A-Za-z])")
USUAL = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # tokens that end a text, in common files


class LibraryTokenizer:
    """The ids are the file's.

    Encoding adds nothing to the text's own ids: no post-processor, no truncation, no padding. Special tokens written in
    the text are text like any other, where the library by default takes them for what they name; added tokens that are
    not special are part of how the file encodes text, and stay.

    Args:
        tokenizer_json: the file's contents.
        end_of_text: the token that ends a text; None: the first that there is of `USUAL`, or, where there is none of
            these, an id of its own behind the vocabulary.
        unknown: what becomes of text without ids (half a surrogate pair, what the file has its unknown token for, an
            end of text that the file's model would find in the text): an "error", "skip" it, or "replace" it by the
            unknown token.

    Raises:
        ValueError: unknown is none of the three.
        UserError: this is no `tokenizer.json`, or it lacks the token named.
    """

    def __init__(self, tokenizer_json: str, end_of_text: str | None = None, unknown: Unknown = "error") -> None:
        check_unknown(unknown)
        self.config: dict[str, Any] = {"tokenizer_json": tokenizer_json, "end_of_text": end_of_text, "unknown": unknown}
        self.unknown: Unknown = unknown
        try:
            file = json.loads(tokenizer_json)
            added = file.get("added_tokens") or []
            names = {token["content"] for token in added} | set(_entries(file["model"]["vocab"]))
            name = end_of_text
            if name is None:
                name = next((usual for usual in USUAL if usual in names), None)
            for token in added:
                token["special"] |= token["content"] == name  # so that it is not found in the text
            self._library = Tokenizer.from_str(
                json.dumps(file | {"truncation": None, "padding": None, "post_processor": None})
            )
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"this is no tokenizer.json that the tokenizers library can read ({error})") from error
        if not names:
            raise UserError("this tokenizer.json has no tokens")
        if name is not None and name not in names:
            raise UserError(f"the vocabulary has no token {name!r}; name one that ends a text, or null for a usual one")
        self._library.encode_special_tokens = True
        vocabulary = self._library.get_vocab()
        if end_of_text is not None and end_of_text not in {token["content"] for token in added}:
            written = self._ask([end_of_text])[0].tolist()
            if written == [vocabulary[end_of_text]]:
                raise UserError(f"{end_of_text!r} is a token that text encodes to; name one that only ends a text")
        self.vocab_size = max(vocabulary.values()) + 1
        if name is None:
            self.end_of_text = self.vocab_size
            self.vocab_size += 1
        else:
            self.end_of_text = vocabulary[name]
        model = file["model"]
        self._unknown_id = model.get("unk_id", vocabulary.get(model.get("unk_token")))
        if unknown != "skip" and self._unknown_id is None and _loses_text(file):
            raise UserError(
                "this tokenizer.json has neither ids for every text nor an unknown token: what it does not know would"
                " be lost without a word; tokenizer.unknown=skip allows that"
            )
        self._cuttable = _splits_as_gpt2_does(file)
        self._words: dict[str, bytes] = {}  # the ids of words met before, as int32
        self._room = KEPT
        self.n_bytes = self._count_bytes(file, vocabulary)

    def encode(self, text: str) -> np.ndarray:
        text = utf8(text, self.unknown).decode()
        if self._cuttable:
            ids = np.concatenate([self._encode_words(piece) for piece in pieces(text, PIECE)])
        else:
            ids = self._ask([text])[0]
        known = ids != self.end_of_text
        if self.unknown != "replace" and self._unknown_id is not None:
            known &= ids != self._unknown_id
        if known.all():
            return ids
        if self.unknown == "replace" and self._unknown_id is not None:
            return np.where(known, ids, np.int32(self._unknown_id))
        if self.unknown != "skip":
            start, end = self._library.encode(text, add_special_tokens=False).offsets[int(np.argmin(known))]
            raise UserError(
                f"{text[start:end]!r} at character {start} is not text that this tokenizer has ids for;"
                " tokenizer.unknown=skip, in sampling --unknown skip, leaves it out"
            )
        return ids[known]

    def _encode_words(self, text: str) -> np.ndarray:
        """The library's ids, asked for once for each word: on new source code twice as fast as for all at once."""
        words = _WORD_ENDS.split(text)
        new = list(set(words).difference(self._words))
        self._words.update(zip(new, (ids.tobytes() for ids in self._ask(new)), strict=True))
        ids = np.frombuffer(bytearray().join(map(self._words.__getitem__, words)), dtype=np.int32)
        self._room -= sum(map(len, new))
        if self._room < 0:
            self._words.clear()
            self._room = KEPT
        return ids

    def _ask(self, texts: list[str]) -> list[np.ndarray]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library's way to say that a model without an unknown token met something new
            raise UserError(f"the tokenizer has no ids for some of the text ({error})") from error
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self._library.decode([i for i in ids if i != self.end_of_text], skip_special_tokens=False)

    def to_json(self) -> str:
        """The file as it was; the library takes special tokens written in a text for what they name, tinygpt does not.

        An end of text behind the vocabulary is not in it.
        """
        return self.config["tokenizer_json"]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.config.values())  # the library's own pickle forgets encode_special_tokens

    def _count_bytes(self, file: dict[str, Any], vocabulary: dict[str, int]) -> np.ndarray:
        """(V,) how many bytes of text the ids stand for: exact where ids stand for bytes, else what one more adds."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        ids = np.array(list(vocabulary.values()))
        once, twice = (self._library.decode_batch([[i] * n for i in ids], skip_special_tokens=False) for n in (1, 2))
        counts[ids] = [len(b.encode()) - len(a.encode()) for a, b in zip(once, twice, strict=True)]
        added = {token["content"] for token in file.get("added_tokens") or []}
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())
        byte_level = "ByteLevel" in json.dumps(file.get("decoder"))
        byte_fallback = file["model"].get("byte_fallback")
        for token, i in vocabulary.items():
            if token in added:
                counts[i] = len(token.encode())
            elif byte_level and alphabet.issuperset(token):
                counts[i] = len(token)
            elif byte_fallback and len(token) == 6 and token.startswith("<0x"):
                counts[i] = 1
        counts[self.end_of_text] = 0
        return counts


def _entries(vocab: Any) -> list[str]:
    """The tokens of a model's vocabulary: a Unigram model has a list of them with their scores, others map to ids."""
    return [token for token, _ in vocab] if isinstance(vocab, list) else list(vocab)


def _loses_text(file: dict[str, Any]) -> bool:
    """Whether text without ids would vanish: in BPE, where not every byte has an id."""
    model = file["model"]
    every_byte = set(pre_tokenizers.ByteLevel.alphabet()) <= set(_entries(model["vocab"]))
    return model.get("type") == "BPE" and not model.get("byte_fallback") and not every_byte


def _splits_as_gpt2_does(file: dict[str, Any]) -> bool:
    """Whether `last_safe_cut` is safe: words are GPT-2's, and nothing reaches over their ends."""
    split = file.get("pre_tokenizer") or {}
    kind = (split.get("type"), split.get("add_prefix_space"), split.get("use_regex", True))
    plain = not file.get("normalizer") and all(token["special"] for token in file.get("added_tokens") or [])
    return plain and kind == ("ByteLevel", False, True)
