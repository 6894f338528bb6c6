"""The processes that come to a daemon: commands, each with a session, and users' Python files."""

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING

from dynamod.message.errors import UserError
from dynamod.observe.bounded import bounded
from dynamod.runtime.liveness import Clocks

from .attached import AttachedGraph
from .link import Connection
from .reload import follow
from .session import Session

if TYPE_CHECKING:
    from .node import Node

FIRST_CLIENT = 30.0
"""Seconds that an ephemeral daemon waits for the first command or file."""
EARLY_LINES = 1000
"""Log lines of the daemon kept for the command that started the daemon, until that command says `Hello`."""


class Clients:
    """`sessions`: of commands. `ephemeral`: the daemon ends with the last session, file and graph.

    `first`: the connection of the command that started the daemon.
    """

    def __init__(self, node: "Node", first: socket.socket | None, *, ephemeral: bool) -> None:
        self._node, self._first = node, first
        self.ephemeral = ephemeral
        self.sessions: set[Session] = set()
        self._early: deque[tuple[str, str, bytes]] | None = None
        bounded(self, "early log lines", EARLY_LINES, lambda one: len(one._early or ()), "lines")

    def greeted(self, connection: Connection) -> None:
        """A process has said what it is."""
        assert connection.hello is not None
        node = self._node
        connection.owner.output = lambda line: node.logs.output(connection.name, line.stream, line.line)
        if connection.hello.kind == "session":
            self.sessions.add(Session(node, connection))
        elif connection.hello.kind == "file":
            graph = AttachedGraph(connection, node.graphs.names())
            node.graphs.files[graph.name] = graph
            connection.on_close(lambda: self._file_closed(graph.name))

    def _first_greeted(self, connection: Connection) -> None:
        """Show the command that started the daemon what the daemon has logged before the `Hello` arrived."""
        self.greeted(connection)
        early, self._early = self._early, None
        for session in self.sessions:
            if session.is_of(connection):
                for line in early or ():
                    session.output(*line)

    def _first_closed(self) -> None:
        self._early = None
        self.end_if_unused()

    def _file_closed(self, name: str) -> None:
        self._node.graphs.files.pop(name, None)
        self.end_if_unused()

    def session_closed(self, session: Session) -> None:
        """A command has ended, or lost its connection."""
        session.leaves()
        if not self._node.life.stopped.is_set():  # else all graphs end, with the node
            self._node.context.task(self._session_closed(session), "end of a session")

    async def _session_closed(self, session: Session) -> None:
        await session.closed()
        self.sessions.discard(session)
        self.end_if_unused()

    async def begin(self, clocks: Clocks) -> None:
        """Adopt the first connection; end an ephemeral daemon to which no client comes."""
        if self._first is not None:
            self._early = deque(maxlen=EARLY_LINES)
            first = await self._node.link.adopt(self._first, "", clocks, self._first_greeted)
            first.on_close(self._first_closed)  # also when it goes without a greeting
        if self.ephemeral:
            self._node.context.task(self._end_without_clients(), "first client")

    async def _end_without_clients(self) -> None:
        await asyncio.sleep(FIRST_CLIENT)
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """End an ephemeral daemon that has neither a session nor a file nor a graph."""
        graphs = self._node.graphs
        if self.ephemeral and not (self.sessions or graphs.files or graphs.running):
            self._node.life.stop()

    def report(self) -> None:
        """Tell each session the rows of its graph, where they have changed."""
        for session in self.sessions:
            session.report()

    def output(self, graph: str, process: str, stream: str, line: bytes) -> None:
        """Pass a line on to the terminal of a graph's session; with an empty graph to all terminals."""
        if self._early is not None and not graph:
            self._early.append((process, stream, line))
        for session in self.sessions:
            if not graph or (session.runner is not None and session.runner.name == graph):
                session.output(process, stream, line)

    async def follow(self, session: Session, timeout: float) -> bool:
        """The graph of a session becomes what its command's files describe now; False without files.

        Raises UserError.
        """
        runner = session.runner
        new = await session.reread() if runner is not None else None
        if runner is None or new is None:
            return False
        await follow(self._node, {runner.name: runner}, {runner.name: new}, timeout)
        return True

    async def reload_all(self, timeout: float) -> None:
        """Read the daemon's own file and those of all commands again. Raises UserError, also when there are none."""
        if (reload := self._node.graphs.reload) is not None:
            await reload(timeout)
        followed = [await self.follow(session, timeout) for session in list(self.sessions)]
        if reload is None and not any(followed):
            raise UserError("nothing that runs here has a file to read again", "dynamo reload -f new.yaml")
