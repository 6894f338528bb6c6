"""`dynamo doctor`: what is wrong on this machine, how to mend it, and where the memory of the processes is."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamod.extension.command import CommandHandler


def _command() -> object:
    from .cli import app

    return app


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .control import HANDLERS

    return HANDLERS


FEATURE = Feature(
    "doctor",
    "dynamo doctor: looks for problems of this machine",
    commands={"doctor": _command},
    controls=_controls,
)
