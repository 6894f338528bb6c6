"""A component process: `python -m dynamod.runtime.host FD`, started by the daemon with a socket pair at FD.

Kept light at import: what a component needs is imported when the plan names it.
"""

import asyncio
import functools
import importlib
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dynamod import __version__
from dynamod.actor import Actor, Crashed, Reason, System, Terminated
from dynamod.discovery.link import LinkRegistry
from dynamod.message.errors import UserError
from dynamod.message.node import FromNode, Hello, Refused, Said, State
from dynamod.message.protocol import PROTOCOL

from . import garbage
from .command_line import retitle
from .components import component_class
from .context import ComponentContext, ProcessContext
from .lifeline import default_signals, die_with_parent, receive_plan
from .liveness import HEARTBEAT
from .plan import EXIT_USER_ERROR, HostPlan, decode
from .snapshot import adopt, environment

log = logging.getLogger("dynamod.host")


class Host(Actor):
    """Runs the components of one plan until it is told to stop, the daemon is gone, or a component ends.

    `code`: what the process exits with, once `over` is set and the host has stopped.
    """

    def __init__(self, plan: HostPlan, sock: socket.socket, fds: Sequence[int]) -> None:
        self._plan, self._sock, self._fds = plan, sock, fds
        self._context: ProcessContext | None = None
        self.over = asyncio.Event()
        self._ended = False  # the components are
        self.code = 0

    async def started(self) -> None:
        """Connect to the daemon and begin to start the components."""
        system = self.context.system

        registry = LinkRegistry(
            Hello(self._plan.name, os.getpid(), version=__version__, protocol=PROTOCOL),
            lambda make: asyncio.get_running_loop().create_unix_connection(make, sock=self._sock),
            handler=self._answer,
            take=self._take,
            lost=lambda _why: self.over.set(),
        )
        self._context = context = await ProcessContext.open(self._plan, system, self.context.task, registry, self._fds)
        context.grace = self._plan.grace
        self.context.task(self._beat(context), "heartbeat")
        self.context.task(self._start_all(context), "start components")

    async def drained(self) -> None:
        """End the components in reverse order, with this actor alive: open answers may need connections until then."""
        self.over.set()
        if self._context is None or self._ended:
            return
        for service in reversed(self._plan.services):
            await self.context.system.root.stop_child(service.name, timeout=self._context.grace + 1.0)
        await self._context.close()
        self._ended = True

    async def stopping(self, reason: Reason) -> None:
        """End the components also where this actor was not drained: after a crash, or while it started."""
        await self.drained()

    @property
    def to_stop(self) -> float:
        """Seconds that the end of all components may take."""
        return 20.0 + (self._context.grace if self._context is not None else 0.0)

    def _take(self, message: FromNode) -> None:
        """The daemon refuses a process of another version, and says why in `ps`: another start would not help."""
        if isinstance(message, Said) and self._context is not None:
            self._context.transport.told(message)
        elif isinstance(message, Refused):
            self.code = EXIT_USER_ERROR
            log.error("%s", message.error)
            self.over.set()

    async def _start_all(self, context: ProcessContext) -> None:
        system = context.system
        for service in self._plan.services:  # in order: each finds those before it in its process
            ctx = ComponentContext(context, service)
            self._tell(service.name, "Starting")
            ref = system.start(service.name, functools.partial(_component, ctx), restart="temporary", shutdown=3.0)
            context.components[service.name] = ref
            system.watch(ref, functools.partial(self._component_ended, service.name))
            if not await system.came_up(ref):
                return
            self._tell(service.name, "Ready")
        await asyncio.sleep(garbage.SETTLED)
        garbage.settle()

    def _component_ended(self, name: str, notice: Terminated) -> None:
        """A component that crashes takes its process with it: the daemon starts a clean one."""
        if self.over.is_set():
            return
        if isinstance(reason := notice.reason, Crashed):
            error = reason.error
            self.code = EXIT_USER_ERROR if isinstance(error, UserError) else 1
            detail = error.line() if isinstance(error, UserError) else str(reason)
            log.error("%s crashed: %s", name, detail, exc_info=None if isinstance(error, UserError) else error)
            self._tell(name, "Stopped", detail)
        self.over.set()

    def _tell(self, component: str, state: str, detail: str = "") -> None:
        assert self._context is not None
        self._context.registry.send(State(component, state, detail))

    async def _beat(self, context: ProcessContext) -> None:
        while True:
            context.registry.send(context.heartbeat())
            await asyncio.sleep(HEARTBEAT)

    # What the daemon asks.

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        assert self._context is not None
        if command == "grace":
            self._context.grace = float(arguments["seconds"])
            return None
        if command != "drain":
            return await self._context.answer(command, arguments)
        self.context.task(self._drain(float(arguments.get("timeout", 600))), "drain")
        return None

    async def _drain(self, timeout: float) -> None:
        for service in reversed(self._plan.services):
            self._tell(service.name, "Draining")
            await self.context.system.root.stop_child(service.name, drain=True, timeout=timeout)
            self._tell(service.name, "Stopped")
        self.over.set()


async def run(plan: HostPlan, sock: socket.socket, fds: Sequence[int]) -> int:
    """Live; returns the exit code."""
    loop = asyncio.get_running_loop()
    garbage.resume_later()
    async with System() as system:
        host = Host(plan, sock, fds)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, host.over.set)
        die_with_parent(sock, lambda: loop.call_soon_threadsafe(host.over.set))
        ref = system.start("host", lambda: host, restart="temporary", shutdown=20)
        system.watch(ref, lambda _notice: host.over.set())
        await host.over.wait()
        await system.root.stop_child("host", drain=True, timeout=host.to_stop)
    return host.code


def _component(ctx: ComponentContext) -> Actor:
    if ctx.service.component_kind:
        return component_class(ctx.service.component_kind)(ctx)
    from .service_host import host_class

    return host_class(ctx)(ctx)


WARM_UP = {
    "ingress": (
        "dynamod.http.late_certificates",
        "dynamod.runtime.components.frontend",
        "dynamod.runtime.components.processor",
        "uvloop",
    ),
    "worker": ("dynamod.runtime.components.worker", "dynamod.preprocess.card", "dynamod.preprocess.fetch", "uvloop"),
}


def warm_up(kind: str) -> None:
    """Import what a process of this kind needs whatever its plan says; see spawn.py."""
    for module in WARM_UP.get(kind, ()):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)


def main() -> None:
    """Entry point of the process."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    live(sock, *sys.argv[2:])


def live(sock: socket.socket, kind: str = "", *, forked: bool = False) -> NoReturn:
    """Take a plan from the daemon at the other end of `sock`, run it, and end the process.

    `kind`: what `warm_up` imports before there is a plan. `forked`: the process has the command line of the command
    that started the daemon.
    """
    garbage.pause()
    default_signals()
    warm_up(kind)
    payload, fds = receive_plan(sock)
    plan = decode(payload)
    if forked:
        retitle(f"dynamod {plan.name}")
    sock.setblocking(False)
    os.environ.update(plan.env)
    if plan.code:  # a spare process was started before there was a snapshot
        adopt(Path(plan.code))
        os.environ.update(environment(os.environ, Path(plan.code)))
    from dynamod.observe.logs import configure, leave

    configure(component=plan.name)
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        code = runner.run(run(plan, sock, fds))
    if code:
        leave(code)
    sys.exit(0)


if __name__ == "__main__":
    main()
