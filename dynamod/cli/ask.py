"""Having the daemon run a command, and printing its answer."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.command import A, Command, R
from dynamod.message.control import LAST_WORKER

from .options import Form

if TYPE_CHECKING:
    from .client import ChangeRefused, ControlAnswer


def ask(
    command: Command[A, R],
    arguments: A,
    form: Callable[[R, int | None], str],
    socket: str | None,
    output: Form,
    *,
    any_release: bool = False,
) -> "ControlAnswer[R]":
    """Print what the daemon answers, and return it. `form`: the text of an answer at a width. Raises UserError.

    `any_release`: also of a daemon with another protocol.
    """
    from .client import Control
    from .show import show

    answer = Control(socket, any_release=any_release).ask(command, arguments)
    show(answer, form, output)
    return answer


def ask_agreed(
    command: Command[A, R], arguments: A, form: Callable[[R, int | None], str], socket: str | None, output: Form
) -> None:
    """As `ask`, for a change that the daemon refuses when a model loses its last worker: a terminal is asked then."""
    from .client import ChangeRefused

    try:
        ask(command, arguments, form, socket, output)
    except ChangeRefused as error:
        if not _agreed(error):
            raise
        ask(command, msgspec.structs.replace(arguments, force=True), form, socket, output)


def _agreed(refused: "ChangeRefused") -> bool:
    """Whether the user wants the change nevertheless; False without a terminal, so that the refusal is an error."""
    if refused.code != LAST_WORKER or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{refused}; continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
