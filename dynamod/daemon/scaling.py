"""What processes of a graph may ask of the daemon: which replicas a component has, and to have others."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.message.control import FINISH
from dynamod.message.errors import UserError
from dynamod.message.pools import Pool, Replica

if TYPE_CHECKING:
    from .node import Node
    from .runner import GraphRunner

COMMANDS = ("pool", "scale", "switch", "keep", "progress")


async def answer(node: "Node", graph: str, command: str, arguments: Mapping[str, Any]) -> Any:
    """`pool` {component}: a `Pool`. `scale` {component, replicas, leave, timeout}: the same when it is done.

    `leave`: replicas that go first. `switch` {component, switch, role, timeout}: the same when the replicas that are
    named have the role. `keep` {component, memo}: what the process that starts next is to know; without `memo` it is
    told, None when there is none. `timeout`: seconds that open streams get to finish. `progress`: the rows of `ps`, of
    all graphs of the node. Raises UserError.
    """
    if command == "progress":
        return msgspec.to_builtins(node.graphs.rows())
    runner = node.graphs.running.get(graph)
    component = str(arguments.get("component") or "")
    if command not in COMMANDS:
        raise UserError(f"a process has no command {command}", ", ".join(COMMANDS))
    if command == "keep" and runner is not None:  # an outside program may run the component
        if (memo := arguments.get("memo")) is not None:
            runner.memos[component] = memo
        return runner.memos.get(component)
    if runner is None or component not in runner.components():
        raise UserError(f"graph {graph} has no component '{component}'", f"it has {', '.join(_names(runner))}")
    timeout = float(arguments.get("timeout", FINISH))
    if command == "scale":
        wanted, leave = arguments.get("replicas"), arguments.get("leave", ())
        if not isinstance(wanted, int):
            raise UserError(f"replicas is {wanted!r}", "give a whole number")
        await runner.scale(component, wanted, timeout, leave=leave)
    if command == "switch":
        for replica in arguments["switch"]:
            await runner.switch(f"{component}.{replica}", arguments["role"], timeout)
    return msgspec.to_builtins(pool_of(runner, component))


def _names(runner: "GraphRunner | None") -> list[str]:
    return runner.components() if runner is not None else []


@contextlib.contextmanager
def by_hand(runner: "GraphRunner", component: str, replicas: int | None = None) -> Iterator[None]:
    """Let planners know that the block changes a component to so many processes, or their role, without their order.

    A block that raises UserError at once has changed nothing. A process group has several components.
    """
    name = component.rpartition("/")[2].partition(".")[0]
    running = runner.groups.get(name)
    names = [spec.name for spec in running.group.services] if running is not None else [name]
    changes = replicas is None or replicas != pool_of(runner, names[0]).wanted
    for one in names:
        runner.by_hand[one] += changes
    try:
        yield
    except UserError:
        for one in names:
            runner.by_hand[one] -= changes
        raise


def pool_of(runner: "GraphRunner", component: str) -> Pool:
    """The component's processes on this node."""
    leases, gpus = runner.node.link.leases(), runner.node.gpus
    found = [
        Replica(
            replica=row.replica,
            state=row.state,
            uptime=row.uptime or 0.0,
            restarts=row.restarts,
            last_error=row.last_error,
            lease=leases.get(row.pid, 0),
            role=row.role,
            pid=row.pid or 0,
        )
        for row in runner.rows(leaving=False)
        if row.component == component
    ]
    each, cluster = runner.graph.services[component].gpus, runner.node.cluster.facts()
    alone = cluster is not None and bool(cluster["store"]) and not cluster["connected"]
    free, by_hand = gpus.free() // each if each else None, runner.by_hand[component]
    return Pool(replicas=tuple(found), free=free, alone=alone, gpus=each, by_hand=by_hand)
