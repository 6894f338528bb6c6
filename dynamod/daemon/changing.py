"""A graph becomes another one with the fewest restarts: which process groups start anew, which sockets they keep."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from dynamod.actor import ActorUnreachable
from dynamod.graph.diff import diff
from dynamod.graph.graph import Graph

from .groups import Group, groups
from .running import Running
from .sockets import Sockets, close_all

if TYPE_CHECKING:
    from .runner import GraphRunner

log = logging.getLogger("dynamod.daemon")


class GraphChange:
    """One change of a graph that runs, whose process groups are locked.

    `before`: its groups. `wanted`: those of the new graph. `fresh`: names of wanted groups that start anew.
    """

    def __init__(self, runner: "GraphRunner", graph: Graph) -> None:
        self._runner, self._node, self._graph = runner, runner.node, graph
        self.before, self.wanted = runner.groups, {group.name: group for group in groups(graph, runner.node.name)}
        changes = diff(runner.graph, graph).changed or {}
        self.fresh = {
            name
            for name, group in self.wanted.items()
            if name not in self.before or _differs(self.before[name], group, changes)
        }

    async def apply(self, timeout: float) -> None:
        """Change the graph. Raises UserError with nothing changed when ports or GPUs cannot be had.

        `timeout`: seconds that open streams of processes which end get to finish.
        """
        runner, gpus, before = self._runner, self._node.gpus, self.before
        supervisor = runner.supervised.supervisor
        if supervisor is None:
            return
        stale = [one for name, one in before.items() if name not in self.wanted or name in self.fresh]
        with contextlib.ExitStack() as undo:
            undo.callback(gpus.restore, gpus.table())
            sockets = self._sockets(stale, undo)
            replicas = self._replicas()
            undo.pop_all()
        unused = {sock for running in stale for sock in running.sockets} - {*chain(*sockets.values())}
        runner.graph = self._graph
        ends = [  # what goes for good, and what leaves devices to others
            (running, index)
            for name, running in before.items()
            for index, devices in running.replicas.items()
            if replicas.get(name, {}).get(index) != devices
        ]
        await runner.supervised.end(ends, timeout)
        close_all(unused)
        for running in stale:
            running.leave_sockets()
        if runner.supervised.supervisor is not supervisor:  # the graph was stopped meanwhile
            for name, indexes in replicas.items():
                for index in indexes:
                    gpus.give_back(f"{runner.name}/{name}.{index}")
            close_all({*chain(*sockets.values())})
            return
        old = {(name, index) for name, running in before.items() for index in running.replicas}
        old -= {(running.group.name, index) for running, index in ends}
        for running in before.values():
            running.replicas = {}  # a change that waits for the lock of a group that is gone finds it empty
        runner.groups = {name: before.get(name) or Running(runner, group, ()) for name, group in self.wanted.items()}
        for name, running in runner.groups.items():
            runner.by_hand[name] += self.wanted[name].replicas != running.group.replicas
            running.group, running.replicas = self.wanted[name], replicas[name]
            running.sockets = sockets.get(name, running.sockets)
            for index in replicas[name]:
                if (name, index) not in old:
                    runner.supervised.spawn(running, index)
        self._node.changes.notify()
        rolled = [(runner.groups[name], [i for n, i in sorted(old) if n == name]) for name in self.fresh]
        await asyncio.gather(*(self._roll(running, indexes, timeout) for running, indexes in rolled))

    async def _roll(self, running: Running, indexes: Sequence[int], timeout: float) -> None:
        """Start replicas anew with what they are now; the others stay as they are when one does not come up."""
        processes = self._runner.supervised
        for count, index in enumerate(indexes, 1):
            try:
                if processes.state(running, index) == "Ready" and running.overlaps:
                    await processes.succeed(running, index, timeout)
                    continue
                await processes.end([(running, index)], timeout)
                if processes.supervisor is None:
                    return
                ref = processes.spawn(running, index)
                if count < len(indexes):
                    await processes.ready(ref)
            except (ActorUnreachable, TimeoutError) as error:
                keeps = "it keeps" if processes.state(running, index) == "Ready" else "the others keep"
                name = running.full_name(index)
                log.error("%s fails with its new settings, %s the old: %s", name, keeps, plain(error))
                return

    def _sockets(self, stale: Sequence[Running], undo: contextlib.ExitStack) -> dict[str, Sockets]:
        """Sockets of the groups that will start: those of groups that end where the place is the same, or new ones."""
        free = {running.group.place(): running.sockets for running in stale}
        sockets: dict[str, Sockets] = {}
        for name in self.fresh:
            if (listener := self.wanted[name].listener()) is not None:
                spec, hosts, port = listener
                if not (found := free.pop((hosts, port), ())):
                    found = self._node.graphs.listen(spec, hosts, port)
                    undo.callback(close_all, found)
                sockets[name] = found
        return sockets

    def _replicas(self) -> dict[str, dict[int, list[str]]]:
        """Devices per replica of all wanted groups. Replicas that ask for as many as before keep theirs."""
        gpus, graph = self._node.gpus, self._runner.name
        replicas: dict[str, dict[int, list[str]]] = {}
        for name, running in self.before.items():
            group = self.wanted.get(name)
            stay = dict(running.replicas) if group is not None and group.gpus == running.group.gpus else {}
            if group is not None and group.replicas != running.group.replicas:  # else scaled by hand, perhaps
                stay = dict(sorted(stay.items())[: group.replicas])
            for index in running.replicas.keys() - stay.keys():
                gpus.give_back(f"{graph}/{name}.{index}")
            replicas[name] = stay
        for name, group in self.wanted.items():
            before = self.before.get(name)
            stay = replicas.setdefault(name, {})
            by_hand = before is not None and before.replicas and before.group.replicas == group.replicas
            count = len(before.replicas) if before is not None and by_hand else group.replicas
            free = (index for index in range(257) if index not in stay)
            for index in [next(free) for _ in range(count - len(stay))]:
                stay[index] = gpus.take(f"{graph}/{name}.{index}", group.gpus)
        return {name: replicas[name] for name in self.wanted}


def _differs(running: Running, new: Group, changes: Mapping[str, Sequence[str]]) -> bool:
    """Whether the processes of a group must be started anew; more or fewer of them is no reason."""
    names = [spec.name for spec in new.services]
    return names != [spec.name for spec in running.group.services] or any(
        set(changes.get(name, ())) - {"workers"} for name in names
    )


def plain(error: BaseException) -> str:
    """The error of a process that has ended, without the name of its class."""
    return str(error).replace("ProcessEnded: ", "")
