"""How text becomes ids, and ids text: one file for each tokenizer."""

from tinygpt.tokenizers.base import END_OF_TEXT, Tokenizer, Unknown, fingerprint, last_safe_cut
from tinygpt.tokenizers.bpe import BPETokenizer
from tinygpt.tokenizers.byte import ByteTokenizer
from tinygpt.tokenizers.char import CharTokenizer
from tinygpt.tokenizers.pretrained import PretrainedTokenizer

__all__ = [
    "END_OF_TEXT",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "PretrainedTokenizer",
    "Tokenizer",
    "Unknown",
    "fingerprint",
    "last_safe_cut",
]
