"""A chat in the terminal, one prompt of stdin, and files of prompts: `dynamo-run in=text`, `in=stdin`, `in=batch:`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.cli.flags import RunArguments
    from dynamod.cli.interrupt import Talk


def _start(arguments: "RunArguments") -> "tuple[RunArguments, Callable[[], Talk]]":
    from .start import start

    return start(arguments)


FEATURE = Feature(
    "chat",
    "dynamo-run in=text, in=stdin, in=batch: a chat in the terminal, one prompt, files of prompts",
    inputs={"text": _start, "stdin": _start, "batch:FILE": _start},
)
