"""Configuration is construction: plain dictionaries that name constructors, checked by name and type, then built.

A part of a configuration names its constructor under `_target_`; its other keys are that constructor's keywords, one to
one.
"""

import inspect
import pydoc
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tinygpt.errors import UsageError, one_line

Config = dict[str, Any]

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)  # "3" is no int; a library's own types pass


def typed(key: str, value: str) -> str:
    """A setting as it is typed in a shell; a list is written [a,b]."""
    if re.fullmatch(r"[\w./:-]+", value, re.ASCII):
        return f"{key}={value}"
    items = value.strip("[]").split(",") if value.startswith("[") else [value]
    quoted = ",".join('"' + item.strip(" \"'").replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
    return shlex.quote(f"{key}=[{quoted}]" if value.startswith("[") else f"{key}={quoted}")


def command_line(words: Sequence[str]) -> str:
    """What trains with these words, as it is typed in a shell."""
    return shlex.join(["python", "train.py", *words])


def parts(cfg: Config) -> dict[str, Config]:
    """The parts that name a constructor, by their dotted names."""
    found: dict[str, Config] = {}
    for group, node in cfg.items():
        if isinstance(node, dict):
            found |= {group: node} if "_target_" in node else {f"{group}.{k}": v for k, v in parts(node).items()}
    return found


def flat(node: Any, name: str = "") -> dict[str, Any]:
    """Every value by its dotted name; one that is nothing is left out."""
    if not isinstance(node, dict):
        return {} if node is None else {name: node}
    return {k: v for key, item in node.items() for k, v in flat(item, f"{name}.{key}".lstrip(".")).items()}


def check(group: str, target: Any, node: Config) -> None:
    """Raise UsageError unless the node's keys are keywords of the target and its values of their types."""
    try:
        hints = get_type_hints(target.__init__ if isinstance(target, type) else target)
    except NameError:  # a library's hints may name what only a type checker imports
        hints = {}
    keywords = list(inspect.signature(target).parameters)
    for key, value in node.items():
        name = f"{group}.{key}".lstrip(".")
        if key == "_target_":
            continue
        if key not in keywords:
            raise UsageError(unknown_key(name, keywords))
        try:
            TypeAdapter(hints.get(key, Any), config=STRICT).validate_python(value)
        except ValidationError as error:
            wanted = hints[key].__name__ if isinstance(hints[key], type) else str(hints[key])
            if get_origin(hints[key]) is Literal:
                wanted = "one of " + ", ".join(map(str, get_args(hints[key])))
            wanted = wanted.replace("typing.", "").replace("None", "null").replace(" | ", " or ")
            raise UsageError(f"{name} must be {wanted}, got {value!r}") from error


def unknown_key(name: str, known: list[str]) -> str:
    """The message for a key that does not exist."""
    group, _, key = name.rpartition(".")
    close = get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    of = f"of {group} " if group else ""
    if not known:
        return f"there is no key {name}{hint} What was chosen for {group} has no keys"
    return f"there is no key {name}{hint} The keys {of}are: {', '.join(sorted(known))}"


def target(node: Config) -> Any:
    """The constructor that a part names.

    Raises:
        UsageError: there is none of that name.
    """
    found = pydoc.locate(node["_target_"])
    if found is None:
        raise UsageError(f"_target_={node['_target_']} names nothing that can be imported")
    return found


def build(cfg: Config, group: str, **runtime: Any) -> Any:
    """Construct what a part names, from its keys and from what is known only at run time.

    Raises:
        UsageError: a key is not the user's to set, or the constructor refuses the values.
    """
    node = parts(cfg)[group]
    for key in runtime.keys() & node.keys():
        raise UsageError(f"{group}.{key} cannot be set, it follows from the rest of the configuration")
    return construct(group, target(node), {key: value for key, value in node.items() if key != "_target_"} | runtime)


def construct(group: str, constructor: Any, keywords: Config) -> Any:
    """Call a constructor; what it refuses is a mistake in the group's values."""
    try:
        return constructor(**keywords)
    except ValueError as error:
        raise UsageError(f"{group}: {one_line(error)}".lstrip(": ")) from error
