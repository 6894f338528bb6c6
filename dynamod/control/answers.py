"""Answers of the core's commands. Each field has a default, so that the answer of an older daemon can be read."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Problem(msgspec.Struct, frozen=True):
    """`found`: one sentence. `mend`: what to do."""

    found: str = ""
    mend: str = ""


class ClusterStatus(msgspec.Struct, frozen=True):
    """How a node is joined to others. `etcd`, `nats`, `tcp`: addresses, or empty. `error`: why it is not `connected`.

    `store`: what holds the keys of all nodes, with its address. `foreign_keys`: keys of other nodes. `namesakes`: other
    daemons with the name of the node.
    """

    etcd: str = ""
    connected: bool = False
    error: str = ""
    nats: str = ""
    store: str = ""
    tcp: str = ""
    foreign_keys: int = 0
    namesakes: int = 0


class GraphStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A graph. `ready`: its processes are Ready, and its models can be asked. `models`: absent from older daemons.

    `target`, `config`, `urls`, `components`: of a graph that the daemon has started. `session`: the command that the
    graph ends with. `error`: why it could not start.
    """

    name: str = ""
    target: str | UnsetType = UNSET
    config: str | UnsetType = UNSET
    ready: bool = False
    models: list[str] | UnsetType = UNSET
    urls: list[str] | UnsetType = UNSET
    components: list[str] | UnsetType = UNSET
    session: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon. `uptime`: seconds. `cluster`: None for a node alone. `components`: how many rows `ps` has.

    `ephemeral`: the daemon ends with the last command. `models`: models that can be asked. `gpus`: devices by process.
    """

    version: str = ""
    pid: int = 0
    node: str = ""
    role: str = ""
    ephemeral: bool = False
    socket: str = ""
    uptime: float = 0.0
    cluster: ClusterStatus | None = None
    problems: list[Problem] = []
    graphs: list[GraphStatus] = []
    models: list[str] = []
    components: int = 0
    ready: bool = False
    gpus: dict[str, list[str]] = {}


class Daemon(msgspec.Struct, frozen=True):
    """A daemon. `node`: of which node. `uptime`: seconds."""

    version: str = ""
    node: str = ""
    pid: int = 0
    uptime: float = 0.0


class LogLines(msgspec.Struct, frozen=True):
    """`next`: the mark after these lines, for the next question."""

    lines: list[str] = []
    next: dict[str, int] = {}


class Drained(msgspec.Struct, frozen=True):
    """`drained`: the component that has left."""

    drained: str = ""


class Stopped(msgspec.Struct, frozen=True):
    """`stopped`: the graph that has ended. `stopping`: the daemon, which ends now."""

    stopping: str | UnsetType = UNSET
    stopped: str | UnsetType = UNSET


class Reloaded(msgspec.Struct, frozen=True):
    """`changes`: a line for each difference of the `graph`. `reloaded`: the daemon, which has read its file again."""

    graph: str | UnsetType = UNSET
    changes: list[str] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    reloaded: str | UnsetType = UNSET


JsonObject = dict[str, Any]
"""An answer with fields that depend on the actor or on features: what `inspect` and `explain` tell."""
