"""What processes of a node and its daemon say to each other over the node link (one unix socket per daemon).

A process says `Hello`, gets `Welcome` with its lease, and from then on puts keys under that lease, watches prefixes
and reports. The link is the lease's life: when it closes, or the process's supervisor says `Exited`, the lease is
revoked and watchers hear of it. A foreground process that joined the daemon of its node (a guest) uses the same link
to show its components and to take commands for them.
"""

from typing import Any

import msgspec


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First word of a process. `lease`: the id it held before, kept when still free; 0 asks for a new one."""

    process: str
    pid: int
    lease: int = 0
    version: str = ""
    guest: bool = False


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Store `value` under `key` with the sender's lease."""

    key: str
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Remove `key`, if the sender's lease holds it."""

    key: str


class Watch(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """Send what stands under `prefix` now (`Snapshot`), then each change (`Changed`)."""

    watch: int
    prefix: str


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """A component's state as its process sees it: Starting, Ready, Draining, Stopped; with a line of detail."""

    component: str
    state: str
    detail: str = ""


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """A guest's `ps` rows (JSON-like), whenever they change."""

    rows: tuple[dict[str, Any], ...]


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """A guest is about to start a graph of this name; answered by `Claimed`."""

    name: str


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Reply to an `Ask`: `error` is empty on success."""

    ask: int
    value: Any = None
    error: str = ""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Heartbeat of the sending process; `at` is its own monotonic clock, only compared with itself.

    `step`: seconds since its engine's step of `tokens` tokens began; None between steps, and without an engine.
    """

    at: float
    step: float | None = None
    tokens: int = 0


class Exited(msgspec.Struct, frozen=True, array_like=True, tag="exited"):
    """A supervisor saw the process with this lease end: revoke at once."""

    lease: int


ToNode = Hello | Put | Delete | Watch | State | Report | Answer | Heartbeat | Exited | Claim


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """Answer to `Hello`. `cluster`: variables that say how other nodes are reached; empty when the node is alone."""

    lease: int
    node: str
    version: str = ""
    cluster: dict[str, str] = {}


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """All keys under a watch's prefix at one moment."""

    watch: int
    items: tuple[tuple[str, bytes], ...]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """One change under a watch's prefix; `value` None means deleted."""

    watch: int
    key: str
    value: bytes | None


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """The daemon asks the process something: verb and arguments; answered by `Answer` with the same number."""

    ask: int
    command: str
    arguments: dict[str, Any] = {}


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag="claimed"):
    """The name that the graph gets: the one asked for, or with a number behind it when that is taken on this node."""

    asked: str
    name: str


FromNode = Welcome | Snapshot | Changed | Ask | Claimed
