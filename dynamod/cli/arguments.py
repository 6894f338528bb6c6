"""What the programs without subcommands read alike from their arguments."""

import argparse
import os
import sys
from typing import NoReturn

from dynamod.message.errors import UserError

LEVELS = ("", "debug", "trace")


class Parser(argparse.ArgumentParser):
    """A mistake is a UserError. `--help` and `--version` end the program by SystemExit."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake with where help is."""
        raise UserError(message, f"see {self.prog} --help")


def configure_logs(verbose: int) -> None:
    """Set up logs for a command; `-v` and `-vv` also reach the component processes, through DYN_LOG."""
    if verbose > 2:
        raise UserError("-v can be given twice at most", "-v is debug, -vv is trace")
    level = LEVELS[verbose]
    if level and not os.environ.get("DYN_LOG"):
        os.environ["DYN_LOG"] = level
    from dynamod.observe.logs import configure

    configure(stream=sys.stderr, level=level)
