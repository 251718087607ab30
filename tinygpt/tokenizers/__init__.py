"""How text becomes ids, and ids text: one file for each tokenizer."""

from tinygpt.tokenizers.base import END_OF_TEXT, Tokenizer, Unknown, fingerprint
from tinygpt.tokenizers.byte import ByteTokenizer
from tinygpt.tokenizers.char import CharTokenizer

__all__ = ["END_OF_TEXT", "ByteTokenizer", "CharTokenizer", "Tokenizer", "Unknown", "fingerprint"]
