"""Asking the user of a terminal whether a change that the daemon has refused is meant."""

import sys

from dynamod.message.control import LAST_WORKER

from .client import ChangeRefused


def agreed(refused: ChangeRefused) -> bool:
    """Whether the user wants the change nevertheless; False without a terminal, so that the refusal is an error."""
    if refused.code != LAST_WORKER or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{refused}; continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
