"""Names of this node and of its graphs; whether another daemon has the name of the node too."""

import contextlib
import hashlib
import logging
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.records import decoded
from dynamod.graph.graph import Graph
from dynamod.message.discovery import NodeRecord
from dynamod.message.errors import UserError

log = logging.getLogger("dynamod.daemon")

NODES = "v1/nodes/"
"""What each daemon of a cluster says of itself: `v1/nodes/{node}/{machine}/{lease in hex}`."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """DYNAMOD_NODE, else the host's name. Raises UserError for one that cannot stand in a key."""
    given = environ.get("DYNAMOD_NODE", "")
    if given and not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given):
        raise UserError(f"DYNAMOD_NODE is {given!r}", "use letters, digits, dots, hyphens and underscores")
    return given or socket.gethostname() or "node"


def machine() -> str:
    """Tells machines apart, and containers with process ids of their own; equal for processes that share both."""
    facts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with contextlib.suppress(OSError):  # else the host's name has to do
            facts.append(os.readlink(path) if path.endswith("pid") else Path(path).read_text())
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=6).hexdigest()


def node_key(name: str, lease: int) -> str:
    """Where the daemon of this machine says what it is. `lease`: of the daemon's own keys."""
    return f"{NODES}{name}/{machine()}/{lease:x}"


def watch_namesakes(registry: MemoryRegistry, name: str, lease: int) -> set[str]:
    """Publish the node's name, and log when another daemon has the same name. Returns these daemons, kept current.

    They are on other machines, or on this one with another control socket. What stands at the node's key stays.
    """
    ours, others = machine(), set[str]()
    prefix, own = f"{NODES}{name}/", node_key(name, lease)

    def changed(key: str, value: bytes | None) -> None:
        where = key.removeprefix(prefix)
        here = where.startswith(f"{ours}/")
        if not here:
            where = where.partition("/")[0]  # a daemon that was killed leaves a key until its lease expires
        if key == own:
            return
        if value is None:
            others.discard(where)
        elif where not in others and (not here or _lives(key, value)):
            others.add(where)
            what = "another daemon of this machine" if here else "another machine"
            log.error("%s is called %s too: give one of them another name (DYNAMOD_NODE)", what, name)

    if registry.own(own) is None:
        registry.put(own, b"", lease)
    registry.watch(prefix, changed)
    return others


def _lives(key: str, value: bytes) -> bool:
    """Whether the daemon of a key of this machine is a process that runs, and not this one."""
    record = decoded(key, value, NodeRecord) if value else None
    if record is None or record.pid in (0, os.getpid()):
        return False
    try:
        state = Path(f"/proc/{record.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X")  # it has ended, and its parent has not asked how
    except OSError:
        return False


def graph_name(graph: Graph) -> str:
    """Default name of a graph: its module's last part (`agg` of graphs.agg:Frontend), else its root.

    Of a graph that is in a config file: the name of the file.
    """
    name = graph.target.partition(":")[0]
    for suffix in (".yaml", ".yml", ".json"):
        if name.endswith(suffix):
            return re.sub(r"[^\w-]", "-", name.rpartition("/")[2].removesuffix(suffix)) or graph.root
    module = name.removesuffix(".py").replace("/", ".")
    return module.rpartition(".")[2] or graph.root


def check_name(name: str) -> str:
    """The name of a graph, or an empty one. Raises UserError: it becomes a part of names and paths."""
    if name and not re.fullmatch(r"\w[\w.@+-]{0,63}", name):
        raise UserError(f"a graph cannot be called '{name}'", "use at most 64 letters, digits and _ - . + @")
    return name
