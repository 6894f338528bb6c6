"""Messages between the daemon of a node and the processes that are connected to it.

A process sends `Hello`, gets `Welcome`, and from then on either side may `Ask` the other something. Three kinds of
process are connected: a `component` process that the daemon has started (over a socket pair), a user's Python `file`
that joined the node, and the `session` of a command in a terminal. The first two have a lease: they put keys under it,
and when the connection closes the lease is revoked and watchers are notified.
"""

from typing import Any, Literal

import msgspec

Kind = Literal["component", "file", "session"]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a process. `lease`: the id it held before, kept when still free; 0 asks for a new one.

    `patience`: seconds without a heartbeat after which the process counts as unresponsive; 0 is the daemon's setting.
    `protocol`: of the sender; releases before 0.2.0 do not say it.
    """

    process: str
    pid: int
    lease: int = 0
    version: str = ""
    kind: Kind = "component"
    patience: float = 0.0
    protocol: int = 1


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Store `value` under `key` with the sender's lease."""

    key: str
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Remove `key`, if the sender's lease holds it."""

    key: str


class Watch(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """Send what is stored under `prefix` now (`Snapshot`), then each change (`Changed`)."""

    watch: int
    prefix: str


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """A component's state as its process sees it: Starting, Ready, Draining, Stopped; with a line of detail.

    An empty state: the process does not run the component any more. `role`: of a worker, its disaggregation mode or the
    next one; empty where the last one holds. `phase`: of a start, like `load`; empty where the last one continues.
    """

    component: str
    state: str
    detail: str = ""
    role: str = ""
    phase: str = ""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """The sender's event loop runs.

    `step`: seconds since the last progress in its engine's step of `tokens` tokens; None between steps, and without an
    engine. `usual`: learned seconds of such a step; 0: not known. `running`, `waiting`: requests in the engine.
    """

    step: float | None = None
    tokens: int = 0
    usual: float = 0.0
    running: int = 0
    waiting: int = 0


class Output(msgspec.Struct, frozen=True, array_like=True, tag="output"):
    """A line that a process printed or logged; `stream` is `out` or `err`. A file sends, a session receives."""

    process: str
    stream: str
    line: bytes


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A question to the other side: a command with its arguments, answered by `Answer` with the same number."""

    number: int
    command: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Reply to an `Ask`. `error` is empty on success; `mistake`: the user can mend it, and `hint` says how."""

    number: int
    value: Any = None
    error: str = ""
    mistake: bool = False
    hint: str = ""


ToNode = Hello | Put | Delete | Watch | State | Heartbeat | Output | Ask | Answer


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """Answer to `Hello`. `cluster`: variables that say how other nodes are reached; empty when the node is alone.

    `process`: what the node calls the sender. `pid`, `protocol`: the daemon's. `said`: what parts of features in the
    daemon say to all processes, by feature.
    """

    lease: int
    node: str
    version: str = ""
    cluster: dict[str, str] = {}
    pid: int = 0
    process: str = ""
    protocol: int = 1
    said: dict[str, Any] = {}


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """No daemon is at this connection, or it does not take the process. `held`: another one holds the node."""

    error: str
    hint: str = ""
    held: bool = False


class Said(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    """What the part of a feature in the daemon says to all processes from now on, as in `Welcome.said`."""

    feature: str
    value: Any


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """All keys under a watch's prefix at one moment."""

    watch: int
    items: tuple[tuple[str, bytes], ...]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """One change under a watch's prefix; `value` None means deleted."""

    watch: int
    key: str
    value: bytes | None


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """The graph of a session, whenever it changes: its rows of `ps` (JSON-like) and where clients reach it."""

    graph: str
    rows: tuple[dict[str, Any], ...]
    urls: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The graph of a session, or the daemon, has been stopped by another command; `why` in one line."""

    why: str


FromNode = Welcome | Said | Refused | Snapshot | Changed | Report | Ended | Output | Ask | Answer
