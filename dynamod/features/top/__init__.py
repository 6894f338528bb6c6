"""`dynamo top`: a live view of the component processes of a node."""

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
    "top",
    "dynamo top: CPU, memory, requests and KV blocks per process",
    uses=("cluster",),
    commands={"top": _command},
    controls=_controls,
)
