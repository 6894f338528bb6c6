"""A command of the control socket that a feature adds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Control:
    """`GET /v1/NAME`, or `POST /v1/NAME` for a command that `changes` something.

    `answer(commands, arguments)`: with `control.commands.Commands` and the arguments by name; returns what is sent as
    JSON, and raises UserError.
    """

    answer: Callable[[Any, dict[str, Any]], Awaitable[Any]]
    changes: bool = False
