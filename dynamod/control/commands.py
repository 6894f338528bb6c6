"""What can be asked of a node, by the control socket or by the daemon that a guest has joined."""

import asyncio
import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod import __version__
from dynamod.actor.inspect import inspect_system
from dynamod.daemon.runner import GraphRunner, down
from dynamod.graph.absolute import absolute
from dynamod.graph.diff import diff, lines
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH, patience
from dynamod.message.errors import UserError
from dynamod.observe.metrics import merge

from .vitals import vitals

if TYPE_CHECKING:
    from dynamod.daemon.link import LinkEnd
    from dynamod.daemon.node import Node

log = logging.getLogger("dynamod.daemon")

CHANGING = frozenset({"restart", "scale", "drain", "stop", "serve", "reload"})
"""Commands that change something: only the owner of the daemon (or root, or its group) may use them."""

ASK = 3.0
"""Seconds that a process has to answer a question."""
GLANCE = 1.0
"""Seconds that it has when somebody looks every second."""


class UnknownName(UserError):
    """No component, graph or actor of that name."""


class Commands:
    """All verbs. `call` finds who is responsible: this process, or a guest whose component is named."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    async def call(self, command: str, arguments: dict[str, Any], *, local: bool = False) -> Any:
        """Run a verb; `local` keeps it in this process. Raises UserError."""
        if not local:
            guest = self._guest_for(arguments) if command in ("restart", "scale", "drain", "stop", "reload") else None
            if guest is not None:
                return await guest.ask(command, arguments, timeout=patience(arguments.get("timeout")))
        match command:
            case "status":
                return self.status()
            case "ps":
                return self.ps(local=local)
            case "logs":
                return await self.logs(arguments, local=local)
            case "inspect":
                return await self.inspect(str(arguments.get("actor") or ""), local=local)
            case "metrics":
                return await self.metrics(local=local, timeout=_seconds(arguments, ASK))
            case "top":
                return await self.top()
            case "explain":
                return await self.explain(arguments, local=local)
            case "restart":
                runner = self._runner(arguments)
                await runner.restart(
                    self._component(arguments), drain=bool(arguments.get("drain", True)), timeout=_seconds(arguments)
                )
                return self._rows_of(runner, arguments)
            case "scale":
                runner = self._runner(arguments)
                if "." in self._component(arguments):
                    raise UserError(f"{self._component(arguments)} is one process", "scale a component, like Worker")
                await runner.scale(self._component(arguments), _replicas(arguments), _seconds(arguments))
                return self._rows_of(runner, arguments)
            case "drain":
                runner = self._runner(arguments)
                await runner.drain(self._component(arguments), _seconds(arguments))
                return {"drained": self._component(arguments)}
            case "stop":
                return await self._stop(arguments)
            case "serve":
                return await self._serve(arguments)
            case "reload":
                return await self._reload(arguments)
            case _:
                raise UserError(f"unknown verb '{command}'", "see /v1")

    # Reading.

    def status(self) -> dict[str, Any]:
        """The daemon and its graphs."""
        node = self._node
        rows = self.ps(local=False)
        graphs = [self._graph_status(runner) for runner in node.graphs.values()]
        graphs += [{"name": name, "ready": False, "error": kept.why} for name, kept in node.failed.items()]
        for end in node.guests():
            hello = end.hello
            assert hello is not None
            for name in sorted({row["graph"] for row in end.rows}):
                own = [row for row in end.rows if row["graph"] == name]
                ready = all(row["state"] == "Ready" for row in own)
                graphs.append({"name": name, "ready": ready, "guest": f"{hello.process} pid {hello.pid}"})
        return {
            "version": __version__,
            "pid": os.getpid(),
            "node": node.name,
            "role": node.role,
            "socket": str(node.socket),
            "uptime": time.monotonic() - node.born,
            "cluster": node.cluster_facts(),
            "graphs": graphs,
            "components": len(rows),
            "ready": bool(rows) and all(row["state"] == "Ready" for row in rows),
            "gpus": node.gpus.table(),
        }

    def ps(self, *, local: bool) -> list[dict[str, Any]]:
        """One row per component and replica, guests' behind our own."""
        rows: list[dict[str, Any]] = [
            msgspec.to_builtins(row) for runner in self._node.graphs.values() for row in runner.rows()
        ]
        rows += [
            msgspec.to_builtins(down(name, spec.name, kept.why))
            for name, kept in self._node.failed.items()
            for spec in kept.graph.start_order()
        ]
        if not local:
            for end in self._node.guests():
                assert end.hello is not None
                rows += [{**row, "guest": f"{end.hello.process} pid {end.hello.pid}"} for row in end.rows]
        return rows

    async def logs(self, arguments: dict[str, Any], *, local: bool) -> dict[str, Any]:
        """Log lines: the last `lines`, or those after the mark `after`; `next` is the mark to go on from.

        Marks are per process (a guest keeps its own), so `after` is a mapping from process to number.
        """
        component = str(arguments.get("component") or "")
        after = arguments.get("after") or {}
        if not isinstance(after, dict) or not all(isinstance(mark, int) for mark in after.values()):
            raise UserError(f"after is {after!r}", "give `next` of the answer before")
        lines = _whole("lines", arguments.get("lines", 100))
        hosting = {row["process"] for row in self.ps(local=True) if _means(row, component, graphs=True)}
        found = [name for name in self._node.log_store.components() if name in hosting or _is_of(name, component)]
        marks = {"here": self._node.recent.number}
        if "here" in after:
            result = self._node.recent.after(int(after["here"]), set(found) if component else None)
        elif component:
            result = [line for name in found for line in self._node.log_store.tail(name, lines)][-lines:]
        else:
            result = self._node.log_store.tail(None, lines)
        answered = bool(found) or bool(hosting) or not component
        if not local:
            for end in self._node.guests():
                assert end.hello is not None
                key = f"{end.hello.pid}"
                if component and not any(_means(row, component, graphs=True) for row in end.rows):
                    continue
                mark = {"here": after[key]} if key in after else {}
                theirs = await end.ask("logs", {**arguments, "after": mark}, timeout=5.0)
                marks[key] = theirs["next"]["here"]
                result += theirs["lines"]
                answered = True
        if not answered:
            raise UnknownName(f"no component '{component}'", _known(self._names()))
        return {"lines": result, "next": marks}

    async def inspect(self, pattern: str, *, local: bool) -> list[dict[str, Any]]:
        """Actors of the daemon and of all component processes whose path contains `pattern`."""
        own = _called(local)
        facts: list[dict[str, Any]] = [{"process": own, **entry} for entry in inspect_system(self._node.system, "")]
        processes = [process for runner in self._node.graphs.values() for process in runner.processes("")]

        async def ask(name: str, question: Any) -> list[dict[str, Any]]:
            try:
                answer: list[dict[str, Any]] = await question
            except Exception as error:  # a process that does not answer is a finding, not a failure
                return [{"process": name, "path": "", "error": f"does not answer: {error or type(error).__name__}"}]
            return [{"process": name, **entry} for entry in answer]

        questions = [
            ask(process.plan.name, process.ask("inspect", {"actor": ""}, timeout=3.0)) for process in processes
        ]
        if not local:
            questions.extend(_guest_inspect(end) for end in self._node.guests())
        for answer in await asyncio.gather(*questions):
            facts += answer
        if pattern:
            facts = [entry for entry in facts if pattern in f"{entry['process']}{entry.get('path', '')}"]
            if not facts:
                raise UnknownName(f"no actor matches '{pattern}'", "dynamo inspect without a name lists all")
        return facts

    async def top(self) -> dict[str, Any]:
        """All of one look for `dynamo top`: rows of `ps`, leases and what the kernel knows by pid, the metrics.

        `at`: monotonic seconds.
        """
        node = self._node
        text = await self.metrics(local=False, timeout=GLANCE)
        rows = self.ps(local=False)
        return {
            "version": __version__,
            "node": node.name,
            "pid": os.getpid(),
            "uptime": time.monotonic() - node.born,
            "at": time.monotonic(),
            "rows": rows,
            "instances": {str(pid): f"{lease:x}" for pid, lease in node.leases().items()},
            "vitals": vitals(row["pid"] for row in rows if row["pid"]),
            "metrics": text,
        }

    async def metrics(self, *, local: bool, timeout: float = ASK) -> str:
        """Statistics of the daemon's own actors, of all component processes and guests, as Prometheus text."""
        from dynamod.runtime.statistics import PREFIX, Answers, system_rows, text

        node = self._node
        own = _called(local)
        processes = [process for runner in node.graphs.values() for process in runner.processes("")]
        asked = [process.ask("metrics", {}, timeout=timeout) for process in processes]
        if not local:
            asked += [end.ask("metrics", {"timeout": timeout}, timeout=timeout + 1) for end in node.guests()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        rows = [*system_rows(node.system), (f"{PREFIX}registry", {}, node.registry.statistics())]
        for process, answer in zip(processes, answers, strict=False):
            labels = {"process": process.plan.name}
            rows.append((f"{PREFIX}process", labels, process.facts()))
            rows.append((f"{PREFIX}process", labels, Answers(isinstance(answer, str))))
        return merge([text(own, iter(rows)), *(answer for answer in answers if isinstance(answer, str))])

    async def explain(self, arguments: dict[str, Any], *, local: bool) -> list[dict[str, Any]]:
        """The routing decisions for a request, from whichever ingress process made them."""
        request = str(arguments.get("request") or "")
        if not request:
            raise UserError("no request named", "give the x-request-id of an answer, or the `id` in its body")
        running = [process for runner in self._node.graphs.values() for process in runner.processes("")]
        processes = [process for process in running if process.answers]  # others would keep everybody waiting
        asked = [process.ask("explain", {"request": request}, timeout=3.0) for process in processes]
        if not local:
            asked += [end.ask("explain", {"request": request}, timeout=5.0) for end in self._node.guests()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [decision for answer in answers if isinstance(answer, list) for decision in answer]
        if not found and not local:
            raise UnknownName(
                f"no decision is known for request '{request}'", "an ingress process keeps those of its last 1,000"
            )
        return sorted(found, key=lambda decision: decision["at"])

    # Changing.

    async def _stop(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = str(arguments.get("graph") or "")
        if not name:
            self._node.stop()
            return {"stopping": "dynamod"}
        if name in self._node.failed:
            self._node.forget_graph(name)
            return {"stopped": name}
        if name not in self._node.graphs:
            raise UnknownName(f"no graph '{name}'", _known([*self._node.graphs, *self._node.failed]))
        await self._node.stop_graph(name)
        return {"stopped": name}

    async def _serve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            graph = Graph.from_dict(arguments["graph"])
            name = str(arguments.get("name") or "") or graph_name(graph)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the graph cannot be read: {error!r}", "use dynamo serve --detach") from None
        runner = await self._node.start_graph(name, graph, origin="handed over")
        return self._graph_status(runner)

    async def _reload(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A graph becomes `new`; without one the daemon's own file is read again. `dry_run`: only say what differs."""
        node = self._node
        if not arguments.get("graph"):
            if node.reload is None:
                raise UserError("this daemon has no file of its own to read again", "dynamo reload -f new.yaml")
            await node.reload(_seconds(arguments))
            return {"reloaded": "dynamod"}
        name = str(arguments["graph"])
        runner = node.graphs.get(name)
        if runner is None:
            raise UnknownName(f"no graph '{name}'", _known([*node.graphs, *node.failed]))
        try:
            new = Graph.from_dict(arguments["new"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the graph cannot be read: {error!r}", "use dynamo reload") from None
        runner.graph = absolute(runner.graph, Path.cwd())  # what is the same must not look different
        changes = lines(runner.graph, new)
        if changes and not arguments.get("dry_run"):
            from dynamod.daemon.reload import describe

            log.info("reload: graph %s changes (%s)", name, describe(diff(runner.graph, new)))
            await runner.change(new, _seconds(arguments))
            node.graphs_changed()
        return {"graph": name, "changes": changes, "dry_run": bool(arguments.get("dry_run"))}

    # Finding.

    def _graph_status(self, runner: GraphRunner) -> dict[str, Any]:
        return {
            "name": runner.name,
            "target": runner.graph.target,
            "config": runner.graph.source,
            "ready": runner.ready(),
            "urls": runner.urls(),
            "components": runner.components(),
        }

    def _component(self, arguments: dict[str, Any]) -> str:
        name = str(arguments.get("component") or "")
        if not name:
            raise UserError("no component named", _known(self._names()))
        graph, _, rest = name.rpartition("/")
        return rest if graph in self._node.graphs else name

    def _runner(self, arguments: dict[str, Any]) -> GraphRunner:
        name = str(arguments.get("component") or "")
        graph = str(arguments.get("graph") or "") or name.rpartition("/")[0]
        component = self._component(arguments)
        found = [
            runner for runner in self._node.graphs.values() if runner.has(component) and graph in ("", runner.name)
        ]
        if not found and (kept := self._node.failed.get(graph)) is not None:
            raise UserError(
                f"graph '{graph}' could not start: {kept.why}", "SIGHUP tries again, dynamo stop forgets it"
            )
        if not found:
            raise UnknownName(f"no component '{name}'", _known(self._names()))
        if len(found) > 1:
            raise _several(component, [runner.name for runner in found])
        return found[0]

    def _guest_for(self, arguments: dict[str, Any]) -> "LinkEnd | None":
        """The guest whose component or graph is named; None for our own and for nobody's."""
        name = str(arguments.get("component") or "")
        graph = str(arguments.get("graph") or "") or name.rpartition("/")[0]
        component = name.rpartition("/")[2]
        if not component and not graph:
            return None
        own = [
            runner.name
            for runner in self._node.graphs.values()
            if graph in ("", runner.name) and (not component or runner.has(component))
        ]
        theirs = [
            (end, row["graph"])
            for end in self._node.guests()
            for row in end.rows
            if graph in ("", row["graph"]) and (not component or _means(row, component))
        ]
        if component and len(named := [*own, *dict.fromkeys(name for _, name in theirs)]) > 1:
            raise _several(component, named)
        return theirs[0][0] if theirs and not own else None

    def _rows_of(self, runner: GraphRunner, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        component = self._component(arguments).split(".")[0]
        rows = [msgspec.to_builtins(row) for row in runner.rows() if row.state != "Draining"]  # those that stay
        return [row for row in rows if _means(row, component)]

    def _names(self) -> list[str]:
        return sorted({row["component"] for row in self.ps(local=False)})


async def _guest_inspect(end: "LinkEnd") -> list[dict[str, Any]]:
    assert end.hello is not None
    try:
        answer: list[dict[str, Any]] = await end.ask("inspect", {}, timeout=5.0)
    except Exception as error:
        return [{"process": end.hello.process, "path": "", "error": f"does not answer: {error}"}]
    return answer


def graph_name(graph: Graph) -> str:
    """Default name of a graph: its module's last part (`agg` of graphs.agg:Frontend), else its root."""
    module = graph.target.partition(":")[0].removesuffix(".py").replace("/", ".")
    return module.rpartition(".")[2] or graph.root


def check_name(name: str) -> str:
    """The name of a graph, or an empty one. Raises UserError: it becomes a part of names and paths."""
    if name and not re.fullmatch(r"\w[\w.@+-]{0,63}", name):
        raise UserError(f"a graph cannot be called '{name}'", "use at most 64 letters, digits and _ - . + @")
    return name


def _called(guest: bool) -> str:
    """What this process is called beside the component processes."""
    return f"dynamod pid {os.getpid()}" if guest else "dynamod"


def _several(component: str, graphs: list[str]) -> UserError:
    choices = ", ".join(f"{graph}/{component}" for graph in graphs)
    return UserError(f"several graphs have a component '{component}'", f"name one of: {choices}")


def _means(row: dict[str, Any], name: str, *, graphs: bool = False) -> bool:
    """Whether a row of `ps` is meant by a component or process group, with or without graph and number.

    `graphs`: the name of a graph means all of it.
    """
    if graphs and name == row["graph"]:
        return True
    graph, _, last = name.rpartition("/")
    number = row["process"].rpartition(".")[2]
    if last in (row["component"], f"{row['component']}.{number}") and graph in ("", row["graph"]):
        return True
    return _is_of(row["process"], name)


def _is_of(process: str, name: str) -> bool:
    """Whether `agg/Worker.0` is meant by a name like `Worker`, `Worker.0` or `agg/Worker`; all are by an empty one."""
    last = process.rpartition("/")[2]
    return not name or name in (process, process.rpartition(".")[0], last, last.partition(".")[0])


def _replicas(arguments: dict[str, Any]) -> int:
    value = arguments.get("replicas")
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"replicas is {value!r}", "give a number from 0 to 256")
    return value


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"{name} is {value!r}", "give a number from 0 upwards")
    return value


def _seconds(arguments: dict[str, Any], default: float = FINISH) -> float:
    value = arguments.get("timeout", default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise UserError(f"timeout is {value!r}", "give seconds")
    return float(value)


def _known(names: list[str]) -> str:
    return f"known: {', '.join(names)}" if names else "nothing is running"
