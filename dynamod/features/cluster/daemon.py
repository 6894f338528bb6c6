"""The cluster in each daemon: it announces itself, asks the others, and answers them."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dynamod import __version__
from dynamod.actor import Reason
from dynamod.control.names import UnknownName
from dynamod.control.refusals import UNKNOWN_COMMAND, Refusal, RefusedElsewhere
from dynamod.daemon.names import machine
from dynamod.daemon.parts import DaemonPart
from dynamod.extension.command import CommandCall, Proceed, decode
from dynamod.message.errors import UserError
from dynamod.message.node import Welcome
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.paths import worker_socket_path

from .answering import Answering
from .asking import GREETING_S, LOOK_S, Heard, Unreached, ask_all, exchange
from .commands import ANSWERS, LOST, NO_COMMANDS, REFUSES, SILENT, NodeAnswer
from .messages import CommandPlace, Order
from .nodes import FEATURE, KnownNode, KnownNodes, target
from .settings import remote_commands, require_allowed, signed_changes

if TYPE_CHECKING:
    from dynamod.control.commands import Commands
    from dynamod.daemon.node import Node
    from dynamod.runtime.transports import TransportSelector
    from dynamod.transport.unix import UnixServer

log = logging.getLogger("dynamod.daemon")

BEFORE_CLIENT_S = 2.0
"""Seconds by which another node's answer is given up earlier than the client of the control socket gives up."""


class ClusterPart(DaemonPart):
    """`known`: the other nodes. Without a cluster there are none, and nothing is announced."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node)
        self._mode, self._signed_changes = remote_commands(os.environ), signed_changes(os.environ)
        self.known = KnownNodes((node.name, machine()))
        self._unfollow: Callable[[], None] = lambda: None
        self._selector: TransportSelector | None = None
        self._server: UnixServer | None = None

    async def started(self) -> None:
        """Follow the registry, and begin to take commands, where there is a cluster."""
        if self.node.cluster.settings.joined:
            self._unfollow = self.known.follow(self.node.registry)
            self.context.task(self._join(), "join")

    async def stopping(self, reason: Reason) -> None:
        """Say that the daemon ends, and take no more commands."""
        self._unfollow()
        if self._selector is not None:
            self.node.cluster.say(FEATURE, CommandPlace(leaving=True))
            await self._selector.close()
        if self._server is not None:
            await self._server.close()

    async def _join(self) -> None:
        node = self.node
        nats = node.cluster.settings.nats
        selector_class, server_class, subject_of = await asyncio.to_thread(_transports, nats=bool(nats))
        answering = Answering(node.name, self._run, self.context.task)
        path = str(worker_socket_path(node.place.folder.path, "commands"))
        selector = self._selector = selector_class(
            "daemon", path, answering.receive, self.context.task, signing=node.cluster.signing
        )
        selector.welcome(Welcome(node.link.lease, node.name, __version__, node.cluster.settings.variables))
        transport = dict[str, str]()
        server = server_class(path, answering.receive, node.cluster.signing)
        try:
            await server.start()
        except OSError as error:
            log.error("commands of other nodes are not taken at %s: %s", path, error)
        else:
            self._server, transport["unix"] = server, path
            self.context.task(server.listener.keep(), "socket")
        if selector.tcp is not None:
            transport["tcp"] = await selector.tcp.serve()
        if subject := await selector.serve(subject_of("dynamod", "daemon", "commands", node.link.lease)):
            transport["nats"] = subject
        node.cluster.say(FEATURE, CommandPlace(transport))

    @cached_property
    def commands(self) -> "Commands":
        """The commands of this node."""
        from dynamod.control.commands import Commands

        return Commands(self.node, self.node.parts.around)

    async def _run(self, command: str, arguments: Mapping[str, Any], sender: str = "", *, signed: bool = False) -> Any:
        call = partial(self.commands.call, signed=True) if signed else self.commands.call
        return await call(command, arguments, sender)

    # Commands of the control socket and of other nodes.

    async def command(self, call: CommandCall, proceed: Proceed) -> Any:
        """Judge a command of another node; send on a command that names another node."""
        if call.sender:
            require_allowed(call, self._mode, self.node.name, signed_changes=self._signed_changes)
            if call.command.changes:
                log.info("node %s has sent the command %s %r", call.sender, call.command.name, call.name)
            return await proceed(call)
        graphs = self.node.graphs
        names = {self.node.name, *(one.name for one in self.known.others())}
        found = target(call.name, {*graphs.names(), *graphs.failed}, names)
        if found is None:
            return await self._proceed_here(call, proceed)
        name, rest = found
        there = call.named(rest)
        return await (proceed(there) if name == self.node.name else self._forward(name, there))

    async def _proceed_here(self, call: CommandCall, proceed: Proceed) -> Any:
        try:
            return await proceed(call)
        except UnknownName as error:
            others = ", ".join(one.name for one in self.known.others())
            if "/" not in call.name or not others:
                raise
            raise UnknownName(str(error), f"{error.hint}; other nodes: {others}") from None

    async def _forward(self, name: str, call: CommandCall) -> Any:
        """Have another node run a command. Raises RefusedElsewhere, UserError."""
        one, *more = self.known.named(name)
        if more:
            raise UserError(f"several machines are called {name}", "give each a name of its own (DYNAMOD_NODE)")
        patience = call.command.patience(decode(call.command, call.arguments)) - BEFORE_CLIENT_S
        try:
            heard = await self.ask(one, call.command.name, call.arguments, outcome_s=patience)
        except Unreached as error:
            hint = "see dynamo nodes"
            raise RefusedElsewhere(Refusal(504, f"node {name}: {error}", hint)) from None
        refusal = heard.outcome.error
        if refusal is None:
            return heard.outcome.answer
        hint = refusal.hint
        if refusal.code == UNKNOWN_COMMAND:
            hint = f"{name} runs dynamod {heard.greeting.version}, this node {__version__}"
        raise RefusedElsewhere(replace(refusal, message=f"node {name}: {refusal.message}", hint=hint))

    async def ask(
        self, one: KnownNode, command: str, arguments: Mapping[str, Any], *, outcome_s: float = LOOK_S
    ) -> Heard:
        """Ask the daemon of another node. Raises Unreached. `outcome_s`: seconds for the answer after the greeting."""
        if one.lost is not None:
            raise Unreached(f"it left the registry without a word {time.time() - one.lost:.0f} s ago")
        way, selector = self._way(one), self._selector
        if selector is None:
            raise Unreached("this node has not joined the cluster yet")
        order = Order(command=command, arguments=dict(arguments), sender=self.node.name, protocol=PROTOCOL)
        return await exchange(selector, one.instance(way), order, greeting_s=GREETING_S, outcome_s=outcome_s)

    def _way(self, one: KnownNode) -> str:
        """The transport to another node: TCP, NATS, else the unix socket on the same machine. Raises Unreached."""
        transport, selector = one.place.transport, self._selector
        if not transport:
            release = one.record.version or "an older release"
            raise Unreached(f"dynamod there ({release}) takes no commands from other nodes")
        if "tcp" in transport and selector is not None and selector.tcp is not None:
            return "tcp"
        connection = selector.connection if selector is not None else None
        near = "unix" in transport and one.machine == machine()
        if "nats" in transport and connection is not None and (connection.accepting or not near):
            return "nats"
        if near:
            return "unix"
        raise Unreached("it is only reached over NATS, and one of the two nodes has no NATS_SERVER")

    # All nodes.

    async def everywhere(self, command: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> list[NodeAnswer]:
        """The answers of all nodes, of this one first; each within its deadline. Raises UserError."""
        found = self.commands.find(command).command
        if found.changes:
            raise UserError(f"{command} changes something", "name one node: NODE/Component")
        own, others = await asyncio.gather(
            self._own_answer(command, arguments),
            ask_all(self.known.others(), partial(self._answer_of, command, arguments), self._missed),
        )
        return [own, *others]

    async def _own_answer(self, command: str, arguments: Mapping[str, Any]) -> NodeAnswer:
        node, record = self.node, self.node.cluster.record
        return NodeAnswer(
            node=node.name,
            machine=machine(),
            state=ANSWERS,
            version=record.version,
            protocol=record.protocol,
            address=str(node.place.socket),
            started=record.started,
            clock_ms=0.0,
            round_trip_ms=0.0,
            own=True,
            answer=await self._run(command, arguments),
        )

    async def _answer_of(self, command: str, arguments: Mapping[str, Any], one: KnownNode) -> NodeAnswer:
        heard = await self.ask(one, command, arguments)
        refusal = heard.outcome.error
        return replace(
            self._missed(one, refusal.message if refusal is not None else ""),
            state=ANSWERS if refusal is None else REFUSES,
            version=heard.greeting.version,
            protocol=heard.greeting.protocol,
            clock_ms=round(heard.clock_ms, 3),
            round_trip_ms=round(heard.seconds * 1000, 3),
            answer=heard.outcome.answer,
        )

    def _missed(self, one: KnownNode, why: str) -> NodeAnswer:
        transport, record = one.place.transport, one.record
        state = LOST if one.lost is not None else SILENT if transport else NO_COMMANDS
        return NodeAnswer(
            node=one.name,
            machine=one.machine,
            state=state,
            why=why,
            version=record.version,
            protocol=record.protocol,
            address=transport.get("nats") or transport.get("unix", ""),
            started=record.started,
        )

    def inspection(self) -> dict[str, Any]:
        """The other nodes."""
        return {"nodes": [one.name for one in self.known.others()], "remote_commands": self._mode}


def _transports(*, nats: bool) -> tuple[Any, Any, Any]:
    """What takes a while to import: in a thread, since the daemon serves meanwhile."""
    from dynamod.runtime.transports import TransportSelector
    from dynamod.transport.nats.transport import instance_subject
    from dynamod.transport.unix import UnixServer

    if nats:
        from dynamod.transport.nats.client import library

        library()
    return TransportSelector, UnixServer, instance_subject
