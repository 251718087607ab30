"""What a user can put right."""


class UserError(Exception):
    """A user's mistake, or a fact of the user's files, in one line: what is wrong, what is allowed, what to do."""
