"""The commands of the control socket that tell of the cluster."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.extension.command import Command, NoArguments


class CardFacts(msgspec.Struct, frozen=True):
    """What must agree between the workers of a model. `mdc_sum`: checksum of what makes tokens of text."""

    model: str = ""
    mdc_sum: str = ""
    block_size: int = 0
    context_length: int = 0


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of its node. `uptime`: seconds. `ready`: how many of its `processes` are Ready.

    `models`: models that can be asked here. `running`, `waiting`: requests in engines. `progress_age`: seconds since
    the last progress of the process that has requests and has made none for longest; null where none has any.
    `problems`: how many `status` shows. `cards`: of the workers of the node. `agree`: what features
    have all nodes agree in, by name.
    """

    version: str = ""
    protocol: int = 0
    pid: int = 0
    uptime: float = 0.0
    processes: int = 0
    ready: int = 0
    models: list[str] = []
    running: int = 0
    waiting: int = 0
    progress_age: float | None = None
    cards: list[CardFacts] = []
    agree: dict[str, str] = {}


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster, as this node sees it. `state`: see the constants below.

    `why`: why there is no answer. `address`: where the daemon takes commands: a subject of NATS, or a unix socket.
    `started`: seconds since the epoch. `clock_ms`: how far its clock is ahead of the clock here, in milliseconds;
    `round_trip_ms`: of the measurement, whose error is at most half of that. Both null without an answer. `own`: it is
    the node that was asked.
    """

    node: str = ""
    machine: str = ""
    state: str = ""
    why: str = ""
    version: str = ""
    protocol: int = 0
    address: str = ""
    started: float = 0.0
    clock_ms: float | None = None
    round_trip_ms: float | None = None
    own: bool = False


class NodeRow(NodeView, frozen=True, kw_only=True):
    """A node with what it says of itself; null without an answer."""

    facts: NodeFacts | None = None


class NodeAnswer(NodeView, frozen=True, kw_only=True):
    """A node with its answer to a command; null without one."""

    answer: Any = None


ANSWERS = "answers"
SILENT = "no answer"
LOST = "lost"
NO_COMMANDS = "no commands"
REFUSES = "refuses"
"""States of a node: it answers; it does not; it has left the registry without a word; it takes no commands, since its
release is older or the feature is off there; it has refused the command."""


def read(one: NodeAnswer, kind: Any) -> tuple[NodeAnswer, Any]:
    """The answer of a node as its type. An answer of another form counts as none: None, and the node says why."""
    if one.state != ANSWERS:
        return one, None
    try:
        return one, msgspec.convert(one.answer, kind)
    except msgspec.ValidationError as error:
        why = f"its answer is of another release: {error}"
        return msgspec.structs.replace(one, state=SILENT, why=why, answer=None), None


class EverywhereArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`command`: one that changes nothing, like `ps`. `arguments`: of the command."""

    command: Annotated[str, Meta(description="give the name of a command, like ps")]
    arguments: dict[str, Any] = {}


NODE = Command("node", NoArguments, NodeFacts, "What this node says of itself to others.")
NODES = Command("nodes", NoArguments, list[NodeRow], "All nodes of the cluster, asked at once.", own_node=True)
EVERYWHERE = Command(
    "everywhere",
    EverywhereArguments,
    list[NodeAnswer],
    "The answers of all nodes to a command that changes nothing.",
    subject="command",
    own_node=True,
)
