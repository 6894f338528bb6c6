"""The session of a command in a terminal: its graph lives as long as the connection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.extension.command import Command, CommandCall, NoArguments, Peer
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError
from dynamod.message.node import Ended, Output, Report
from dynamod.observe.lines import MarkedLines

from .attached import unused
from .link import Connection
from .names import graph_name
from .parts import through
from .runner import GraphRunner
from .spawn import Origin, drop_spares

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

MOST = 4 << 20
"""Bytes that may wait for a terminal that does not read; above it lines are dropped and counted."""
READ = 60.0
"""Seconds that a command gets to read its file again."""


_OF_SESSIONS = {
    name: Command(name, NoArguments, object, summary, changes=True, own_node=True)
    for name, summary in (
        ("serve", "Start a graph that lives as long as its command."),
        ("reload", "Change this graph to what the command's file says now."),
        ("stop", "End this graph."),
    )
}
"""What a command in a terminal changes, as parts of features see it: the same names as on the control socket."""


class Session:
    """What a command asks for, and what is sent to it: rows of its graph, lines of its processes."""

    def __init__(self, node: "Node", connection: Connection) -> None:
        self._node, self._connection = node, connection
        self.runner: GraphRunner | None = None
        self._told: Report | None = None
        self._dropped = 0
        self._due = False
        channel = connection.channel
        self._peer = Peer(channel.peer_uid, channel.peer_pid or connection.pid)
        connection.owner.answer = self._answer
        connection.on_close(lambda: node.clients.session_closed(self))

    @property
    def name(self) -> str:
        """What others see: `dynamo serve pid 123`."""
        return f"{self._connection.name} pid {self._connection.pid}"

    def is_of(self, connection: Connection) -> bool:
        """Whether the command of this session is at the other end of `connection`."""
        return self._connection is connection

    def end(self, why: str) -> None:
        """Tell the command that its graph, or the daemon, is stopped by another command."""
        self._connection.channel.send(Ended(why))

    async def reread(self) -> Graph | None:
        """The graph as the command's files describe it now; None when it has none. Raises UserError."""
        value = await self._connection.channel.ask("graph", timeout=READ)
        return read_graph(value) if value is not None else None

    def report(self) -> None:
        """Tell the rows of the graph, once per turn of the loop, when they have changed."""
        if not self._due and self.runner is not None:
            self._due = True
            asyncio.get_running_loop().call_soon(self._report)

    def output(self, process: str, stream: str, line: bytes) -> None:
        """Pass on a line of a process of the graph, or of the daemon."""
        channel = self._connection.channel
        if channel.waiting > MOST:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = f"{dropped} lines were dropped because the output was not read"
            record = logging.LogRecord("dynamod.daemon", logging.WARNING, __file__, 0, text, None, None)
            channel.send(Output("dynamod", "err", MarkedLines(component="dynamod").format(record).encode()))
        channel.send(Output(process, stream, line))

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        match command:
            case "serve":
                shown = {key: value for key, value in arguments.items() if key != "environ"}
                return await self._change("serve", shown, lambda: self._serve(arguments))
            case "reload":
                timeout = float(arguments["timeout"])
                return await self._change("reload", arguments, lambda: self._follow(timeout))
            case "stop":
                return await self._change("stop", arguments, self._stop) if self._decides else await self._stop()
            case _:
                raise UserError(f"a session has no command {command}")

    async def _change(self, name: str, arguments: Mapping[str, Any], work: Callable[[], Awaitable[Any]]) -> Any:
        """Do what changes something; the parts of features see it as a command of the control socket."""
        graph = {"graph": self.runner.name} if self.runner is not None else {}
        call = CommandCall(_OF_SESSIONS[name], {**arguments, **graph, "session": self.name}, peer=self._peer)
        return await through(self._node.parts.around(), call, lambda _call: work())

    async def _follow(self, timeout: float) -> None:
        await self._node.clients.follow(self, timeout)

    async def _serve(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self.runner is not None:
            raise UserError("this session has a graph already")
        graph, wanted = read_graph(arguments["graph"]), str(arguments.get("name") or "")
        if not wanted:
            await self._node.graphs.make_way(graph)
        name = wanted or unused(graph_name(graph), self._node.graphs.names())
        grace = arguments.get("timeout")
        self.runner = await self._node.graphs.start(
            name,
            graph,
            origin=_origin(arguments),
            session=self.name,
            grace=None if grace is None else float(grace),
        )
        self.report()
        return {"name": name, "components": self.runner.components()}

    @property
    def _decides(self) -> bool:
        """Whether the end of the command stops the graph: no other command has stopped the graph, or the daemon."""
        runs = self.runner is not None and self._node.graphs.running.get(self.runner.name) is self.runner
        return runs and not self._node.life.stopped.is_set()

    async def _stop(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None and self._node.graphs.running.get(runner.name) is runner:
            await self._node.graphs.stop(runner.name)

    def _report(self) -> None:
        self._due = False
        runner = self.runner
        if runner is None:
            return
        if self._node.graphs.running.get(runner.name) is not runner:
            self.runner = None
            self.end(f"graph {runner.name} was stopped")
            return
        if runner.ready() or runner.fatal():
            drop_spares()  # all processes have been started
        rows = tuple(msgspec.to_builtins(row) for row in runner.rows())
        told = tuple({**row, "uptime": None} for row in rows), tuple(runner.urls())
        report = Report(runner.name, told[0], told[1])
        if report != self._told:
            self._told = report
            self._connection.channel.send(Report(runner.name, rows, told[1]))

    def leaves(self) -> None:
        """The command has gone, however it ended: its graph is about to."""
        if self.runner is not None:
            self.runner.ending = True

    async def closed(self) -> None:
        """Stop the graph of a command that has gone."""
        runner = self.runner
        if runner is not None:
            log.info("%s has ended: its graph %s is stopped", self.name, runner.name)
            await (self._change("stop", {}, self._stop) if self._decides else self._stop())


def read_graph(value: Any, hint: str = "") -> Graph:
    """A graph that a command has sent. Raises UserError, with `hint`, for a value that is no graph."""
    try:
        return Graph.from_dict(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the graph cannot be read: {error!r}", hint) from None


def _origin(arguments: Mapping[str, Any]) -> Origin:
    environ = {str(name): str(value) for name, value in arguments["environ"].items()}
    return Origin(environ, str(arguments["folder"]), str(arguments["python"]))
