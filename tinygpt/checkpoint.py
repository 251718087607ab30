"""What a checkpoint holds, and how it is read without running anybody's code.

A checkpoint is one file of tensors and plain values: Lightning's own entries (weights, optimizer, callbacks), under
`tinygpt` what rebuilds the model and the tokenizer, and under `resume` what goes on where it stopped. A class is
written as its name and its constructor's keywords; on reading, a name counts only if it is a class that tinygpt itself
defines.

The file is a zip archive, as `torch.save` writes it, with a checksum for each entry (`unzip -t` knows them). PyTorch
does not look at them, so that a flipped bit would be a wrong weight; `load` does.
"""

import importlib
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tinygpt import files
from tinygpt.errors import UserError
from tinygpt.model.gpt import GPT
from tinygpt.tokenizers import Tokenizer

FORMAT = 3


class Contents(NamedTuple):
    """What sampling needs."""

    model: GPT
    tokenizer: Tokenizer


def describe(thing: Any) -> Any:
    """A plain value as it is; an object as its class's name and its constructor's keywords, described in turn."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, list | tuple):
        return [describe(item) for item in thing]
    config = thing.config if hasattr(thing, "config") else vars(thing)
    keywords = {key: describe(value) for key, value in config.items()}
    return {"class": f"{type(thing).__module__}.{type(thing).__qualname__}", "keywords": keywords}


def rebuild(description: Any) -> Any:
    """The inverse of `describe`.

    Raises:
        UserError: a name is not that of a class that tinygpt defines.
    """
    if isinstance(description, list):
        return [rebuild(item) for item in description]
    if not isinstance(description, dict):
        return description
    return _class(description["class"])(**{key: rebuild(value) for key, value in description["keywords"].items()})


def _class(name: str) -> type:
    module, _, attribute = name.rpartition(".")
    if module.split(".")[0] == "tinygpt":
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            found = None
        if isinstance(found, type) and found.__module__ == module:
            return found
    raise UserError(f"the checkpoint names {name!r}, which is no class of this tinygpt; it is not loaded")


def entry(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a checkpoint holds under `tinygpt`."""
    return {"format": FORMAT, "model": describe(model), "tokenizer": describe(tokenizer)}


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        OSError: the disk is full, or refuses otherwise.
    """
    with files.whole(path) as file:
        try:
            torch.save(contents, file)
        except RuntimeError as error:  # PyTorch's own, about a position in the file, in place of the disk's
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def load(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """All that a checkpoint holds, on the CPU.

    Args:
        path: the file.
        mmap: leave the tensors in the file until they are looked at.

    Raises:
        UserError: it is not there, not a tinygpt checkpoint, damaged, or one of another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        found = contents["tinygpt"]["format"]
    except FileNotFoundError as error:
        raise UserError(f"there is no checkpoint {path}") from error
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # whatever a file that is something else, or damaged, makes the reader stumble over
        raise UserError(f"{path} is not a tinygpt checkpoint, or it is damaged") from error
    if found != FORMAT:
        raise UserError(f"{path} has checkpoint format {found}; this tinygpt reads format {FORMAT}")
    return contents


def read(path: Path) -> Contents:
    """The model, in evaluation mode and on the CPU, and the tokenizer of a checkpoint.

    Raises:
        UserError: it is not there, not a tinygpt checkpoint, damaged, or one of another format.
    """
    contents = load(path, mmap=True)
    try:
        model, tokenizer = (rebuild(contents["tinygpt"][name]) for name in ("model", "tokenizer"))
        model.load_state_dict({name.removeprefix("model."): w for name, w in contents["state_dict"].items()})
        assert isinstance(model, GPT)
    except UserError:
        raise
    except Exception as error:  # a whole file, of something else
        raise UserError(f"{path} is not a tinygpt checkpoint, or it is damaged") from error
    return Contents(model.eval(), tokenizer)


def find(path: Path | None) -> Path:
    """The checkpoint that a user means by a file, a run's directory, or nothing: the newest run below `runs/`.

    Of a run it is the best checkpoint, or the last where there is no best.

    Raises:
        UserError: there is none.
    """
    if path is None:
        runs = {c.parent.parent for c in Path("runs").glob("**/checkpoints/*.ckpt")}
        if not runs:
            raise UserError("there is no run with a checkpoint below runs/; train one, or name one by --checkpoint")
        path = max(runs, key=lambda run: max(c.stat().st_mtime for c in run.glob("checkpoints/*.ckpt")))
    if not path.is_dir():
        return path
    for name in ("best.ckpt", "last.ckpt"):
        if (path / "checkpoints" / name).exists():
            return path / "checkpoints" / name
    raise UserError(f"{path} has no checkpoints/best.ckpt and no checkpoints/last.ckpt")
