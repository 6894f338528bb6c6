"""What daemons of a cluster say to each other: where each takes commands, a command, its greeting and its outcome.

An exchange is one stream of the transport. The daemon that is asked sends its greeting at once, then the outcome.
Unknown fields are skipped, and each field has a default, so that daemons of two releases read each other.
"""

from typing import Any

import msgspec

from dynamod.control.refusals import Refusal
from dynamod.message.discovery import Label


class CommandPlace(msgspec.Struct, frozen=True):
    """The section of a node's record. `transport`: where the daemon takes commands, as of an instance.

    `leaving`: the daemon ends in good order.
    """

    transport: dict[str, Label] = {}
    leaving: bool = False


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A command for another node. `sender`: the node that asks, with its `protocol`."""

    command: Label = ""
    arguments: dict[str, Any] = {}
    sender: Label = ""
    protocol: int = 0


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """Sent before the command begins. `clock`: seconds since the epoch, at the node that is asked."""

    node: Label = ""
    version: Label = ""
    protocol: int = 0
    clock: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`answer`: as the control socket sends it. `error`: why the command was not done."""

    answer: Any = None
    error: Refusal | None = None
