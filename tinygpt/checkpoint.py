"""What a checkpoint holds, and how it is read without running anybody's code.

A checkpoint is one file of tensors and plain values: Lightning's own entries (weights, optimizer, progress), and under
`tinygpt` what rebuilds the model and the tokenizer. A class is written as its name and its constructor's keywords; on
reading, a name counts only if it is a class that tinygpt itself defines.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tinygpt.errors import UserError
from tinygpt.model.gpt import GPT
from tinygpt.tokenizers import Tokenizer

FORMAT = 1


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


def read(path: Path) -> Contents:
    """The model, in evaluation mode and on the CPU, and the tokenizer of a checkpoint.

    Raises:
        UserError: it is not there, not a tinygpt checkpoint, or one of another format.
    """
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        saved = contents["tinygpt"]
        if saved["format"] != FORMAT:
            raise UserError(f"{path} has checkpoint format {saved['format']}; this tinygpt reads format {FORMAT}")
        model, tokenizer = rebuild(saved["model"]), rebuild(saved["tokenizer"])
        model.load_state_dict({name.removeprefix("model."): w for name, w in contents["state_dict"].items()})
        assert isinstance(model, GPT)
        return Contents(model.eval(), tokenizer)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"there is no checkpoint {path}") from error
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # whatever a file that is something else, or damaged, makes the reader stumble over
        raise UserError(f"{path} is not a tinygpt checkpoint, or it is damaged") from error


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
