"""What can be asked of the daemon over its control socket."""

import asyncio
import logging
import os
import time
from inspect import isawaitable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod import __version__
from dynamod.actor.inspect import inspect_system
from dynamod.daemon.attached import AttachedGraph
from dynamod.daemon.names import check_name, graph_name
from dynamod.daemon.process import ProcessRecord
from dynamod.daemon.reload import describe
from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.scaling import by_hand
from dynamod.daemon.served import GraphState, ServedModels
from dynamod.daemon.session import read_graph
from dynamod.discovery.keys import INSTANCES
from dynamod.extension.installed import control
from dynamod.graph.absolute import absolute
from dynamod.graph.diff import diff, lines
from dynamod.message.control import FINISH
from dynamod.message.discovery import ROLES
from dynamod.message.errors import UserError
from dynamod.observe.metrics import exposition, load, merged

from . import problems
from .last_worker import require_others
from .names import Arguments, Names, UnknownName, is_of, known, means
from .vitals import vitals

if TYPE_CHECKING:
    from dynamod.daemon.node import Node

log = logging.getLogger("dynamod.daemon")

READING = ("status", "ps", "top", "logs", "inspect")
CHANGING = frozenset({"restart", "scale", "switch", "drain", "stop", "serve", "reload"})
"""Commands that change something: only the owner of the daemon (or root, or its group) may use them."""

ASK = 3.0
"""Seconds that a process has to answer a question."""
GLANCE = 1.0
"""Seconds for the answer when a command asks every second."""

UNASKED = "unknown command"
"""What a process says that does not know a question."""

OWN = "dynamod"
"""What the daemon itself is called beside the component processes."""


class Commands:
    """All commands. Component names may have the name of a graph before them (`agg/Worker`) and a number behind."""

    def __init__(self, node: "Node") -> None:
        self._node, self._names = node, Names(node.graphs)

    async def call(self, command: str, arguments: Arguments) -> Any:
        """Run a command: the method of its name, or what a feature adds. Raises UserError."""
        if (added := control(command)) is not None:
            return await added.answer(self, arguments)
        if command not in {*READING, "metrics", "explain", *CHANGING}:
            raise UserError(f"unknown command '{command}'", "see /v1")
        answer = getattr(self, command)(arguments)
        return await answer if isawaitable(answer) else answer

    # Reading.

    async def status(self, _arguments: Arguments) -> dict[str, Any]:
        """The daemon, its graphs, and its problems (problems.Problem)."""
        node = self._node
        responsive = [process for process in self._names.processes() if process.answers]  # others would keep us waiting
        answers = await self._asked(responsive, "statistics", GLANCE)
        rows, cluster, served = self._names.rows(), node.cluster.facts(), ServedModels(node)
        services = {one.name: served.graph(one) for one in node.graphs.all()}
        loading = {process.name.partition("/")[0] for process, answer in answers.items() if problems.loads(answer)}
        found = chain(
            problems.of_rows(rows),
            problems.of_models({process.name: answer for process, answer in answers.items()}),
            problems.of_graphs(name for name, one in services.items() if one.silent and name not in loading),
            problems.of_logs(node.logs.store),
            problems.of_cluster(cluster),
            problems.of_kept(node.graphs.trouble),
            problems.of_nodes(node.registry.items(INSTANCES)),
        )
        graphs: list[dict[str, Any]] = [
            _status(runner, services[runner.name]) for runner in node.graphs.running.values()
        ]
        graphs += [{"name": name, "ready": False, "error": kept.why} for name, kept in node.graphs.failed.items()]
        for name, file in node.graphs.files.items():
            service = services[name]
            graphs.append({"name": name, "ready": service.ready, "models": service.models, "session": file.session})
        return {
            "version": __version__,
            "pid": os.getpid(),
            "node": node.name,
            "role": "daemon",
            "ephemeral": node.clients.ephemeral,
            "socket": str(node.place.socket),
            "uptime": time.monotonic() - node.life.born,
            "cluster": cluster,
            "problems": [msgspec.to_builtins(problem) for problem in found],
            "graphs": graphs,
            "models": served.models(),
            "components": len(rows),
            "ready": bool(rows) and all(graph["ready"] for graph in graphs),
            "gpus": node.gpus.table(),
        }

    def ps(self, _arguments: Arguments) -> list[dict[str, Any]]:
        """One row per component and replica, with the models that can be asked."""
        served = ServedModels(self._node)
        return [msgspec.to_builtins(served.row(row)) for row in self._node.graphs.rows()]

    async def logs(self, arguments: Arguments) -> dict[str, Any]:
        """Log lines: the last `lines`, or those after the mark `after`; `next` is the mark to go on from."""
        node = self._node
        component = str(arguments.get("component") or "")
        after = arguments.get("after") or {}
        if not isinstance(after, dict) or not all(isinstance(mark, int) for mark in after.values()):
            raise UserError(f"after is {after!r}", "give `next` of the answer before")
        count = _whole(arguments, "lines", 100)
        hosting = {row["process"] for row in self._names.rows() if component == row["graph"] or means(row, component)}
        stored = await asyncio.to_thread(node.logs.store.components)
        found = [name for name in stored if name in hosting or is_of(name, component)]
        if not found and not hosting and component:
            raise UnknownName(f"no component '{component}'", known(self._names.components()))
        mark = {"here": node.logs.recent.number}
        if "here" in after:
            result = node.logs.recent.after(int(after["here"]), set(found) if component else None)
        else:
            result = await asyncio.to_thread(node.logs.store.tail, found, count)
        return {"lines": result, "next": mark}

    async def inspect(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Actors of the daemon and of all component processes whose path contains `actor`."""
        pattern = str(arguments.get("actor") or "")
        facts: list[dict[str, Any]] = [{"process": OWN, **entry} for entry in inspect_system(self._node.system, "")]
        for process, answer in (await self._asked(self._names.processes(), "inspect", ASK)).items():
            if isinstance(answer, BaseException):  # a finding, not a failure
                answer = [{"path": "", "error": f"does not answer: {str(answer) or type(answer).__name__}"}]
            facts += [{"process": process.name, **entry} for entry in answer]
        if pattern:
            facts = [entry for entry in facts if pattern in f"{entry['process']}{entry.get('path', '')}"]
            if not facts:
                raise UnknownName(f"no actor matches '{pattern}'", "dynamo inspect without a name lists all")
        return facts

    async def top(self, _arguments: Arguments) -> dict[str, Any]:
        """All of one look for `dynamo top`: rows of `ps`, leases and what the kernel knows by pid, statistics.

        `at`: monotonic seconds. `statistics`: runtime.statistics.ProcessStatistics by answering process.
        """
        node = self._node
        answers = await self._asked(self._names.processes(), "statistics", GLANCE)
        rows = self._names.rows()
        return {
            "version": __version__,
            "node": node.name,
            "pid": os.getpid(),
            "uptime": time.monotonic() - node.life.born,
            "at": time.monotonic(),
            "rows": rows,
            "instances": {str(pid): f"{lease:x}" for pid, lease in node.link.leases().items()},
            "vitals": vitals(row["pid"] for row in rows if row["pid"]),
            "statistics": {process.name: value for process, value in answers.items() if isinstance(value, dict)},
        }

    async def metrics(self, _arguments: Arguments) -> str:
        """Statistics of the daemon's own actors and of all component processes, as Prometheus text."""
        await load()
        from prometheus_client.parser import text_string_to_metric_families

        from dynamod.runtime.statistics import PREFIX, Answers, families_of, system_rows

        node, found = self._node, await self._asked(self._names.processes(), "metrics", ASK)
        rows = [*system_rows(node.system), (f"{PREFIX}registry", {}, node.registry.statistics())]
        for process, answer in found.items():
            labels = {"process": process.name}
            rows.append((f"{PREFIX}process", labels, process.facts()))
            rows.append((f"{PREFIX}process", labels, Answers(isinstance(answer, str))))
        texts = [answer for answer in found.values() if isinstance(answer, str)]
        told = chain.from_iterable(map(text_string_to_metric_families, texts))
        return exposition(merged(chain(families_of(OWN, rows), told)))

    async def explain(self, arguments: Arguments) -> list[dict[str, Any]]:
        """The routing decisions for a request, from whichever ingress process made them."""
        request = arguments["request"]
        answers = await self.ask("explain", {"request": request})
        found = [decision for answer in answers.values() if isinstance(answer, list) for decision in answer]
        if not found:
            hint = "an ingress process keeps those of its last 1,000"
            raise UnknownName(f"no decision is known for request '{request}'", hint)
        return sorted(found, key=lambda decision: decision["at"])

    async def ask(self, question: str, arguments: Arguments) -> dict[ProcessRecord, Any]:
        """What each process that is responsive answers, or the exception that says why it does not."""
        processes = [process for process in self._names.processes() if process.answers]  # others would keep us waiting
        return await self._asked(processes, question, ASK, arguments)

    async def _asked(
        self, processes: list[ProcessRecord], question: str, timeout: float, arguments: Arguments | None = None
    ) -> dict[ProcessRecord, Any]:
        """What each process answers within `timeout` seconds, or the exception that says why it does not."""
        asked = [process.ask(question, arguments, timeout=timeout) for process in processes]
        return dict(zip(processes, await asyncio.gather(*asked, return_exceptions=True), strict=True))

    # Changing.

    async def restart(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Replace the processes of a component; `drain`: open streams finish first."""
        graph, component = self._names.started(arguments)
        await graph.restart(component, drain=bool(arguments.get("drain", True)), timeout=_seconds(arguments))
        return self._names.rows_of(graph, component)

    async def scale(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Run a component in `replicas` processes. `force`: also when a model loses its last worker."""
        graph, component = self._names.started(arguments)
        if "." in component:
            raise UserError(f"{component} is one process", "scale a component, like Worker")
        replicas = _whole(arguments, "replicas", None)
        self._require_others(graph, component, arguments, keep=replicas)
        with by_hand(graph, component, replicas):
            await graph.scale(component, replicas, _seconds(arguments))
        return self._names.rows_of(graph, component)

    async def switch(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Have workers change their `role` while they run. `expected_epoch`: only if it has not changed since.

        `force`: also when a model loses its last worker.
        """
        graph, component = self._names.started(arguments)
        role, expected = arguments.get("role"), arguments.get("expected_epoch")
        if role not in ROLES:
            raise UserError(f"role is {role!r}", f"one of: {', '.join(ROLES)}")
        epoch = None if expected is None else _whole(arguments, "expected_epoch", None)
        self._require_others(graph, component, arguments, role=role)
        with by_hand(graph, component):
            await graph.switch(component, role, _seconds(arguments), epoch)
        return self._names.rows_of(graph, component)

    async def drain(self, arguments: Arguments) -> dict[str, Any]:
        """Take a component out of service. `force`: also when a model loses its last worker."""
        (graph, component), seconds = self._names.found(arguments), _seconds(arguments)
        self._require_others(graph, component, arguments, by_hand=False)
        if isinstance(graph, AttachedGraph):
            await graph.stop()
        else:
            await graph.drain(component, seconds)
        return {"drained": component}

    async def stop(self, arguments: Arguments) -> dict[str, Any]:
        """End a graph, without a name the daemon. `timeout`: seconds that open answers get to finish."""
        node, name = self._node, str(arguments.get("graph") or "")
        grace = None if arguments.get("timeout") is None else _seconds(arguments)
        if not name:
            node.life.stop(grace)
            return {"stopping": "dynamod"}
        if name in node.graphs.failed:
            node.graphs.forget(name)
        elif name in node.graphs.names():
            await node.graphs.stop(name, grace)
        else:
            raise UnknownName(f"no graph '{name}'", known([*sorted(node.graphs.names()), *node.graphs.failed]))
        return {"stopped": name}

    async def serve(self, arguments: Arguments) -> dict[str, Any]:
        """Start a graph that was handed over."""
        graph = read_graph(arguments.get("graph"), "use dynamo serve --detach")
        name = check_name(str(arguments.get("name") or "")) or graph_name(graph)
        runner = await self._node.graphs.start(name, graph, kept=True)
        return _status(runner, ServedModels(self._node).graph(runner))

    async def reload(self, arguments: Arguments) -> dict[str, Any]:
        """A graph becomes `new`; without one the daemon's own file is read again. `dry_run`: only say what differs."""
        node = self._node
        if not arguments.get("graph"):
            await node.clients.reload_all(_seconds(arguments))
            return {"reloaded": "dynamod"}
        name = str(arguments["graph"])
        if name in node.graphs.files:
            raise node.graphs.files[name].refusal()
        runner = node.graphs.running.get(name)
        if runner is None:
            raise UnknownName(f"no graph '{name}'", known([*node.graphs.running, *node.graphs.failed]))
        new = read_graph(arguments.get("new"), "use dynamo reload")
        runner.graph = absolute(runner.graph, Path.cwd())  # what is the same must not look different
        changes = lines(runner.graph, new)
        changes += [f"{name}: 0 -> {count} processes" for name, count in runner.drained(new).items()]
        if changes and not arguments.get("dry_run"):
            log.info("reload: graph %s changes (%s)", name, describe(diff(runner.graph, new)), extra={"graph": name})
            await runner.change(new, _seconds(arguments))
            node.graphs.changed()
        return {"graph": name, "changes": changes, "dry_run": bool(arguments.get("dry_run"))}

    def _require_others(
        self,
        graph: GraphRunner | AttachedGraph,
        component: str,
        arguments: Arguments,
        *,
        keep: int = 0,
        role: str = "",
        by_hand: bool = True,
    ) -> None:
        """Refuse a change that takes a model's last worker away, without `force`. `keep`: replicas that stay."""
        rows = [row for row in graph.rows() if row.state != "Draining" and means(msgspec.to_builtins(row), component)]
        stay = sorted({row.replica for row in rows})[:keep]
        pids = {row.pid for row in rows if row.replica not in stay}
        if not arguments.get("force"):
            require_others(self._node, graph, component, pids, role, by_hand=by_hand)


def _status(runner: GraphRunner, service: GraphState) -> dict[str, Any]:
    return {
        "name": runner.name,
        "target": runner.graph.target,
        "config": runner.graph.source,
        "ready": service.ready,
        "models": service.models,
        "urls": runner.urls(),
        "components": runner.components(),
        "session": runner.session,
    }


def _whole(arguments: Arguments, key: str, default: int | None) -> int:
    value = arguments.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"{key} is {value!r}", "give a number from 0 upwards")
    return value


def _seconds(arguments: Arguments) -> float:
    value = arguments.get("timeout", FINISH)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise UserError(f"timeout is {value!r}", "give seconds")
    return float(value)
