"""The actors beneath the node: node link and control socket, and the parts of features."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dynamod.actor import Actor, Backoff, Policy, Spec, Supervisor
from dynamod.extension.command import CommandCall, Proceed
from dynamod.extension.installed import daemon_parts

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

ALWAYS = Policy(intensity=2**31)
"""Of actors that are always started again: the daemon works without them meanwhile."""


class DaemonPart(Actor):
    """What a feature keeps in each daemon. It is made with the node, and made again after a crash.

    The first one is made before a process can connect: `__init__` raises UserError for a wrong setting.
    """

    def __init__(self, node: "Node") -> None:
        self.node = node

    def to_processes(self) -> Any:
        """What each process of the node hears in its greeting (`Welcome.said`); empty: nothing.

        `LinkServer.say` says the next thing.
        """
        return None

    async def command(self, call: CommandCall, proceed: Proceed) -> Any:
        """Answer a command of the control socket or of another node; `proceed` is the answer without this part.

        Raises UserError.
        """
        return await proceed(call)

    def refused(self, call: CommandCall, status: int, message: str) -> None:
        """Hear of a command whose client may not change anything: `command` is not called. The answer of HTTP."""


async def through(parts: Iterable[DaemonPart], call: CommandCall, proceed: Proceed) -> Any:
    """Answer a command that passes through parts, the outermost first. `proceed`: the answer without them.

    Raises UserError.
    """
    for part in reversed([*parts]):
        proceed = partial(part.command, proceed=proceed)
    return await proceed(call)


class Parts:
    """`services`: the supervisor of the node link and of the control socket, without which the daemon ends.

    `of_features`: the parts of features as they run now, by feature. `control` makes the actor of the control socket.
    """

    services: Supervisor

    def __init__(self, node: "Node", control: "Callable[[Node], Actor]") -> None:
        self._node, self._control = node, control
        self._classes: Mapping[str, Callable[[Node], DaemonPart]] = {}
        self.of_features: dict[str, DaemonPart] = {}

    async def begin(self) -> None:
        """Make the parts of features, before a process can connect. Raises UserError for a wrong setting."""
        self._classes = daemon_parts()
        self.of_features = {name: made(self._node) for name, made in self._classes.items()}
        self.services = await self._node.system.supervisor("services")

    async def serve(self, spec: Spec) -> None:
        """Start an actor that the daemon cannot do without, and wait until it is ready."""
        await self._node.system.ready(self.services.start_child(spec), timeout=5)

    async def serve_control(self) -> None:
        """Bind the control socket."""
        await self.serve(Spec("control", lambda: self._control(self._node)))

    async def begin_features(self) -> None:
        """Start the parts of features."""
        if not self._classes:
            return
        supervisor = await self._node.system.supervisor("features", ALWAYS)
        for name, made in self._classes.items():
            supervisor.start_child(Spec(name, self._factory(name, made), backoff=Backoff()))

    def _factory(self, name: str, made: "Callable[[Node], DaemonPart]") -> Callable[[], DaemonPart]:
        first = [self.of_features[name]]

        def make() -> DaemonPart:
            self.of_features[name] = part = first.pop() if first else made(self._node)
            return part

        return make

    def around(self) -> Iterable[DaemonPart]:
        """The parts through which commands pass, the outermost first."""
        return self.of_features.values()

    async def end_features(self) -> None:
        """Stop the parts of features."""
        await self._node.system.root.stop_child("features")

    async def end(self) -> None:
        """Stop the services."""
        await self._node.system.root.stop_child("services")
