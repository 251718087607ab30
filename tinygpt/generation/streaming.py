"""From ids to text as they come: never half a character, and nothing of a stop."""

from collections.abc import Sequence

from tinygpt.tokenizers import Tokenizer


class IncrementalDecoder:
    """Text as soon as it is certain: what it has given, put together, is what decoding all ids at once gives.

    A token may hold a part of a character, and then its text follows with the token that completes it.

    Args:
        tokenizer: whose ids come.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.context = 0  # where the ids begin whose text is given, but which may shape the text of the next
        self.given = 0  # how many ids' text is given

    def add(self, token: int) -> str:
        """The text that is certain with this id; often "", where it ends within a character."""
        self.ids.append(token)
        text = self._new()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):  # the next id may complete it
            return ""
        self.context, self.given = self.given, len(self.ids)
        return text

    def flush(self) -> str:
        """What is left at the end: half a character, as the tokenizer shows one."""
        text = self._new()
        self.context = self.given = len(self.ids)
        return text

    def _new(self) -> str:
        before = self.tokenizer.decode(self.ids[self.context : self.given])
        return self.tokenizer.decode(self.ids[self.context :])[len(before) :]


class StopWatch:
    """Lets text through until one of several strings occurs, whole or over several pieces of text.

    Args:
        stops: strings, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop must not be empty")
        self.stops = stops
        self.held = ""  # the end of the text, which a stop may begin with
        self.stopped = False

    def add(self, text: str) -> str:
        """What can be shown: nothing of a stop, and nothing that may turn out to be the beginning of one."""
        if self.stopped:
            return ""
        text = self.held + text
        places = [place for place in (text.find(stop) for stop in self.stops) if place >= 0]
        if places:
            self.stopped, self.held = True, ""
            return text[: min(places)]
        keep = max((n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text that was held back and became no stop."""
        text, self.held = self.held, ""
        return text
