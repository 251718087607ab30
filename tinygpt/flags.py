"""Command lines of plain flags."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """One that names a mistake in one line, and leaves the list of all flags to --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; --help explains all flags\n")
