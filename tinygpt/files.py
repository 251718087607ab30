"""Writing files so that at every instant a whole one exists."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write under another name, flush to the disk, and move into place."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
