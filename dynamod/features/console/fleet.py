"""Looks at the nodes of a cluster as one fleet: names of other nodes stand before those of their processes (pure)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dynamod.features.top.rows import Look, NodeProcessRow, ProcessRow, Top, top
from dynamod.message.rows import Row


class Looks(msgspec.Struct, frozen=True):
    """One look at each node, by its name. `own`: the node whose daemon was asked."""

    own: str
    by_node: Mapping[str, Look]


def looks_of(payload: bytes, *, several: bool) -> Looks:
    """The looks of an answer to `top`, or to `everywhere` with `top`. Raises msgspec.MsgspecError for another text."""
    if not several:
        look = msgspec.json.decode(payload, type=Look)
        return Looks(look.node, {look.node: look})
    from dynamod.features.cluster.commands import NodeAnswer, read

    found, own = dict[str, Look](), ""
    for answer in msgspec.json.decode(payload, type=list[NodeAnswer]):
        one, look = read(answer, Look)
        if look is not None:
            found[one.node] = look
            own = one.node if one.own else own
    if not own:
        raise msgspec.ValidationError("the daemon has not told of its own node")
    return Looks(own, found)


def models_of(answer: Any, *, several: bool) -> dict[str, list[str]]:
    """Models that can be asked through each process, by its name in the fleet, where there are any.

    `answer`: to `ps`, or to `everywhere` with `ps`. Raises msgspec.MsgspecError for another form.
    """
    if not several:
        return {row.process: row.models for row in msgspec.convert(answer, list[Row]) if row.models}
    from dynamod.features.cluster.commands import NodeAnswer, read

    found: dict[str, list[str]] = {}
    for given in msgspec.convert(answer, list[NodeAnswer]):
        one, rows = read(given, list[Row])
        before = "" if one.own else f"{one.node}/"
        found |= {f"{before}{row.process}": row.models for row in rows or () if row.models}
    return found


def fleet(now: Looks, before: Looks | None = None) -> tuple[Top, list[Row]]:
    """All processes, compared with an earlier look, and their rows of `ps`."""
    earlier = before.by_node if before is not None else {}
    views = {node: top(look, earlier.get(node)) for node, look in now.by_node.items()}
    processes, rows = list[ProcessRow](), list[Row]()
    for node in (now.own, *sorted(views.keys() - {now.own})):
        if node == now.own:
            processes += views[node].processes
            rows += now.by_node[node].rows
            continue
        processes += [_named(node, one) for one in views[node].processes]
        rows += [
            msgspec.structs.replace(one, process=f"{node}/{one.process}", graph=f"{node}/{one.graph}")
            for one in now.by_node[node].rows
        ]
    return msgspec.structs.replace(views[now.own], processes=processes), rows


def _named(node: str, one: ProcessRow) -> NodeProcessRow:
    """As commands name it: NODE/GRAPH/PROCESS."""
    names = {"process": f"{node}/{one.process}", "graph": f"{node}/{one.graph}"}
    return NodeProcessRow(**{**msgspec.structs.asdict(one), **names}, node=node)
