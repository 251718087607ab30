"""The tokenizer of somebody else's `tokenizer.json`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tinygpt.errors import UserError
from tinygpt.tokenizers.base import Unknown
from tinygpt.tokenizers.file import read_file
from tinygpt.tokenizers.library import LibraryTokenizer


class PretrainedTokenizer(LibraryTokenizer):
    """A file of the `tokenizers` library, of whatever kind; kept whole, so that a checkpoint needs no other file."""

    @classmethod
    def train(
        cls,
        documents: Iterable[str],  # noqa: ARG003 - every tokenizer's
        path: str,
        end_of_text: str | None = None,
        unknown: Unknown = "error",
    ) -> Self:
        """There is nothing to learn: read the file.

        Args:
            documents: not used.
            path: a `tokenizer.json`, or a folder that holds one.
            end_of_text, unknown: as of `LibraryTokenizer`.

        Raises:
            ValueError: unknown is none of the three.
            UserError: there is no such file, it is damaged or no `tokenizer.json`, or it lacks the token named.
        """
        file = Path(path).expanduser()
        if file.is_dir():
            file /= "tokenizer.json"
        content = read_file(file)
        try:
            return cls(content, end_of_text, unknown)
        except UserError as error:
            raise UserError(f"{file}: {error}") from error
