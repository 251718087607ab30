"""What a user can put right."""


class UserError(Exception):
    """A user's mistake, or a fact of the user's files, in one line: what is wrong, what is allowed, what to do."""


class UsageError(Exception):
    """A configuration asks for what does not exist or is not allowed."""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, or its name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
