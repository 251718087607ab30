"""Sampling line by line: a text that the user and the model write in turns."""

from collections.abc import Iterator
from typing import Any

from tinygpt.errors import UserError
from tinygpt.generation.decoding import Decoder
from tinygpt.generation.sampling import Sampling
from tinygpt.generation.text import TextGenerator

NUMBERS = {  # what can be set, and of what kind it is
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "no_repeat_ngram": int,
    "max_new_tokens": int,
    "seed": int,
}
HELP = f"""\
A line is added to the text so far, and the model goes on with it; Ctrl-C stops it, Ctrl-D ends.
/reset      forget the text so far
/NAME VALUE set one of: {", ".join(NUMBERS)}
/NAME       set it back
/settings   what is set
/help       this"""


class Session:
    """The text so far, and how it is sampled.

    Args:
        gpt: who answers.
        settings: those of `TextGenerator.stream` to begin with.
    """

    def __init__(self, gpt: TextGenerator, settings: dict[str, Any]) -> None:
        self.gpt = gpt
        self.before = settings
        self.settings = dict(settings)
        self.text = ""

    def answer(self, line: str) -> Iterator[str]:
        """What the model adds to a line, as it comes; or what a command, which begins with a slash, has to say.

        Raises:
            UserError: there is no such command, or its value is not allowed.
        """
        if line.startswith("/"):
            yield self.command(line[1:])
            return
        prompt = f"{self.text}\n{line}" if self.text else line
        try:
            for piece in self.gpt.stream([prompt], **self.settings):
                self.text = prompt + piece.sample.text
                yield piece.text
        except ValueError as error:
            raise UserError(str(error)) from error

    def command(self, line: str) -> str:
        name, _, value = line.strip().partition(" ")
        if name == "help":
            return HELP
        if name == "reset":
            self.text = ""
            return ""
        if name == "settings":
            return "\n".join(f"{name} {self.settings[name]}" for name in NUMBERS if name in self.settings)
        if name not in NUMBERS:
            raise UserError(f"there is no /{name}; /help names what there is")
        if not value:
            self.settings = {k: v for k, v in self.settings.items() if k != name}
            self.settings |= {k: v for k, v in self.before.items() if k == name}
            return ""
        try:
            number = NUMBERS[name](value)
        except ValueError as error:
            kind = "a whole number" if NUMBERS[name] is int else "a number"
            raise UserError(f"/{name} must be {kind}, got {value.strip()!r}") from error
        try:
            if name in Sampling.__dataclass_fields__:
                Sampling(**{name: number})
            else:
                setting: dict[str, Any] = {"max_new_tokens": 1} | {name: number}
                Decoder(self.gpt.model, [], **setting)
        except ValueError as error:
            raise UserError(f"/{error}") from error
        self.settings[name] = number
        return ""
