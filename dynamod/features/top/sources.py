"""What `dynamo top` looks at: this node, or all nodes of the cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from dynamod.cli.client import Control
from dynamod.extension.command import NoArguments
from dynamod.extension.installed import require

from .commands import TOP
from .rows import ClusterTop, Look, NodeProcessRow, ProcessRow, Top, top

L = TypeVar("L")


class Source(Protocol, Generic[L]):
    """Gives looks, and compares two of them."""

    def looks(self, interval: float) -> Iterator[L]:
        """Look now, and again and again after so many seconds. Raises UserError."""
        ...

    def compare(self, now: L, before: L | None = None) -> Top:
        """The rows of a look. `before`: an earlier one."""
        ...


class OneNode:
    """The node of a control socket."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def looks(self, interval: float) -> Iterator[Look]:
        """Look now, and again and again after so many seconds. Raises UserError."""
        for answer in self._control.answers(TOP, NoArguments(), interval):
            yield msgspec.convert(answer.raw, Look)

    def compare(self, now: Look, before: Look | None = None) -> Top:
        """The rows of a look. `before`: an earlier one."""
        return top(now, before)


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """`looks`: by node. `missing`: why other nodes have given none."""

    looks: Mapping[str, Look]
    missing: Mapping[str, str]


class AllNodes:
    """All nodes of the cluster, asked by the daemon of a control socket. Raises UserError where no feature asks."""

    def __init__(self, control: Control) -> None:
        require("cluster", "--all")
        self._control = control

    def looks(self, interval: float) -> Iterator[ClusterLook]:
        """Look now, and again and again after so many seconds. Raises UserError."""
        from dynamod.features.cluster.commands import EVERYWHERE, EverywhereArguments, read

        for answer in self._control.answers(EVERYWHERE, EverywhereArguments(command=TOP.name), interval):
            looks, missing = dict[str, Look](), dict[str, str]()
            for one in answer.value:
                node, look = read(one, Look)
                if look is None:
                    missing[node.node] = node.why
                else:
                    looks[node.node] = look
            yield ClusterLook(looks, missing)

    def compare(self, now: ClusterLook, before: ClusterLook | None = None) -> ClusterTop:
        """The rows of all nodes. `before`: an earlier look."""
        earlier = before.looks if before is not None else {}
        views = {node: top(look, earlier.get(node)) for node, look in now.looks.items()}
        rows: list[ProcessRow] = [
            NodeProcessRow(**{**msgspec.structs.asdict(row), "process": f"{node}/{row.process}"}, node=node)
            for node, view in views.items()
            for row in view.processes
        ]
        intervals = [view.interval for view in views.values() if view.interval is not None]
        return ClusterTop(
            interval=max(intervals, default=None), processes=rows, nodes=[*now.looks], missing=dict(now.missing)
        )
