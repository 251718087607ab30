"""`tokenizer.json` on the disk, with a checksum beside it: a changed letter in a vocabulary shows in nothing else."""

import hashlib
from pathlib import Path

from tinygpt import files
from tinygpt.errors import UserError
from tinygpt.tokenizers.base import Tokenizer


def write_file(path: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer's file, and PATH.sha256 as `sha256sum` does."""
    content = tokenizer.to_json()
    files.write_text(path, content)
    files.write_text(_checksum_path(path), f"{_sha256(content.encode())}  {path.name}\n")


def read_file(path: Path) -> str:
    """A `tokenizer.json`, whoever wrote it; where there is a checksum beside it, it is compared.

    Raises:
        UserError: there is no such file, it is not what its checksum says, or no text.
    """
    checksum = _checksum_path(path)
    try:
        content = path.read_bytes()
        if checksum.exists() and checksum.read_bytes().split()[:1] != [_sha256(content).encode()]:
            raise UserError(f"{path} is damaged, or was changed: {checksum} says so; remove that one if it may be")
        return content.decode()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}; tokenizer.path names a tokenizer.json or its folder"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no tokenizer.json, it is not even UTF-8 text") from error


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
