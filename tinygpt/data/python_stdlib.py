"""The corpus that every Python carries: the source text of its own standard library."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tinygpt.data.corpus import Corpus, Splits
from tinygpt.data.readers import read_documents
from tinygpt.errors import UserError

# Not the library itself (installed packages), not typical of it (tests), or tables of data written as code, whose
# characters are half of all that occur.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data", "encodings"}
ENOUGH = 1_000_000  # bytes; a usual installation has about ten times as many


@dataclass(kw_only=True)
class PythonStdlib(Corpus):
    """The `.py` files of the running interpreter's standard library, a document each.

    A hash of its name decides whether a file is held out, so that the split does not move when files come and go. The
    held-out files lie in the order of that hash: the first `max_val_tokens` of them are a fair sample.
    """

    def splits(self) -> Splits:
        root = Path(sysconfig.get_path("stdlib"))
        names = sorted(
            path.relative_to(root).as_posix()
            for path in root.rglob("*.py")
            if not LEFT_OUT & set(path.relative_to(root).parts)
        )
        size = sum((root / name).stat().st_size for name in names)
        if size < ENOUGH:
            raise UserError(
                f"{root} holds {size:,} bytes of Python source, at least {ENOUGH:,} are wanted: this installation"
                " lacks its standard library's source; train on your own with data=text_files data.files=..."
            )
        validation = sorted((name for name in names if _share(name) < self.val_fraction), key=_share)
        train = [name for name in names if _share(name) >= self.val_fraction]
        if not train or not validation:
            raise UserError(f"data.val_fraction={self.val_fraction} leaves no file for training or for validation")
        return Splits(*(read_documents([root / name for name in part]) for part in (train, validation)))


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
