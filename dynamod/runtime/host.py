"""A component process: `python -m dynamod.runtime.host FD`, started by the daemon with a lifeline at FD.

Kept light at import: what a component needs is imported when the plan names it.
"""

import asyncio
import gc
import importlib
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dynamod.actor import Actor, Crashed, Reason, System, Terminated
from dynamod.actor.inspect import inspect_system
from dynamod.message.errors import UserError
from dynamod.message.node import Answer, Ask, FromNode, Heartbeat, State

from .components import component_class
from .context import ComponentContext, ProcessContext
from .lifeline import Lifeline, die_with_parent, receive_plan
from .plan import EXIT_USER_ERROR, HostPlan, decode
from .process_context import leave, surround

log = logging.getLogger("dynamod.host")

HEARTBEAT = 0.5


class Host:
    """Runs the components of one plan until it is told to stop, the daemon is gone, or a component ends."""

    def __init__(self, plan: HostPlan, sock: socket.socket, fds: Sequence[int]) -> None:
        self._plan = plan
        self._fds = fds
        self._sock = sock
        self._stop = asyncio.Event()
        self._code = 0
        self._lifeline = Lifeline(self._asked, self._stop.set, upper=False)
        self._process_context: ProcessContext | None = None

    async def run(self) -> int:
        """Live; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        die_with_parent(self._sock, lambda: loop.call_soon_threadsafe(self._stop.set))
        async with System() as system:
            self._system = system
            root = _Root(self._lifeline, self._sock, self._in_step)
            host = system.start("host", lambda: root, restart="temporary", shutdown=1)
            await system.ready(host, timeout=10)
            system.watch(host, self._watcher("host"))
            self._process_context = process_context = await self._surroundings(system)
            cell = system.cell(host)
            assert cell is not None
            cell.actor.context.task(self._start_all(process_context), "start components")
            await self._stop.wait()
            await self._end(process_context)
        return self._code

    async def _surroundings(self, system: System) -> ProcessContext:
        root = system.cell(system.ref("/host"))
        assert root is not None
        return await surround(self._plan, system, root.actor.context.task, self._from_node, self._fds)

    async def _start_all(self, process_context: ProcessContext) -> None:
        for service in self._plan.services:  # in order: each finds those before it in its process
            ctx = ComponentContext(process_context, service)
            self._say(service.name, "Starting")
            ref = process_context.system.start(service.name, _maker(ctx), restart="temporary", shutdown=3.0)
            process_context.components[service.name] = ref
            cell = process_context.system.cell(ref)
            assert cell is not None
            process_context.system.watch(ref, self._watcher(service.name))
            await cell.ready.wait()
            if cell.state == "Stopped":
                return
            self._say(service.name, "Ready")
        settle_garbage()

    def _watcher(self, name: str) -> Callable[[Terminated], None]:
        return lambda notice: self._component_ended(name, notice.reason)

    def _component_ended(self, name: str, reason: Reason) -> None:
        """A component that crashes takes its process with it: the daemon starts a clean one."""
        if self._stop.is_set():
            return
        if isinstance(reason, Crashed):
            error = reason.error
            self._code = EXIT_USER_ERROR if isinstance(error, UserError) else 1
            detail = error.line() if isinstance(error, UserError) else str(reason)
            log.error("%s crashed: %s", name, detail, exc_info=None if isinstance(error, UserError) else error)
            self._say(name, "Stopped", detail)
        self._stop.set()

    async def _end(self, process_context: ProcessContext) -> None:
        self._stop.set()
        for service in reversed(self._plan.services):
            await process_context.system.root.stop_child(service.name)
        await leave(process_context)

    def _in_step(self) -> tuple[float, int] | None:
        """The engine's own report; see engine.worker."""
        for ref in self._process_context.components.values() if self._process_context is not None else ():
            cell = self._system.cell(ref)
            report = getattr(cell.actor, "in_step", None) if cell is not None else None
            if report is not None:
                step: tuple[float, int] | None = report()
                return step
        return None

    def _say(self, component: str, state: str, detail: str = "") -> None:
        self._lifeline.say(State(component, state, detail))

    def _asked(self, ask: Ask) -> None:
        cell = self._system.cell(self._system.ref("/host"))
        if cell is not None:
            cell.actor.context.task(self._answer(ask), f"answer {ask.command}")

    async def _answer(self, ask: Ask) -> None:
        try:
            match ask.command:
                case "inspect":
                    value: Any = inspect_system(self._system, ask.arguments.get("actor", ""))
                case "metrics":
                    from .statistics import whole_text

                    value = whole_text(self._process_context) if self._process_context is not None else ""
                case "explain":
                    value = self._explain(str(ask.arguments.get("request", "")))
                case "drain":
                    value = None
                    cell = self._system.cell(self._system.ref("/host"))
                    assert cell is not None
                    cell.actor.context.task(self._drain(float(ask.arguments.get("timeout", 600))), "drain")
                case _:
                    raise UserError(f"unknown verb {ask.command}")
        except Exception as error:
            self._lifeline.say(Answer(ask.ask, None, str(error)))
        else:
            self._lifeline.say(Answer(ask.ask, value))

    def _explain(self, request: str) -> list[Any]:
        process_context, found = self._process_context, list[Any]()
        for ref in process_context.components.values() if process_context is not None else ():
            cell = self._system.cell(ref)
            explain = getattr(cell.actor, "explain", None) if cell is not None else None
            if explain is not None:
                found += explain(request)
        return found

    async def _drain(self, timeout: float) -> None:
        for service in reversed(self._plan.services):
            self._say(service.name, "Draining")
            await self._system.root.stop_child(service.name, drain=True, timeout=timeout)
            self._say(service.name, "Stopped")
        self._stop.set()

    def _from_node(self, message: FromNode) -> None:
        log.debug("unexpected word from the daemon: %s", type(message).__name__)


class _Root(Actor):
    """Keeps the lifeline and its heartbeat."""

    def __init__(
        self, lifeline: Lifeline, sock: socket.socket, in_step: Callable[[], tuple[float, int] | None]
    ) -> None:
        self._lifeline, self._sock, self._in_step = lifeline, sock, in_step

    async def started(self) -> None:
        self.context.task(self._lifeline.run(self._sock), "lifeline")
        self.context.task(self._heartbeat(), "beat")

    async def _heartbeat(self) -> None:
        while True:
            step, tokens = self._in_step() or (None, 0)
            self._lifeline.say(Heartbeat(self.context.now(), step, tokens))
            await asyncio.sleep(HEARTBEAT)


def _maker(ctx: ComponentContext) -> Callable[[], Actor]:
    return lambda: _component(ctx)


def _component(ctx: ComponentContext) -> Actor:
    if ctx.service.component_kind:
        return component_class(ctx.service.component_kind)(ctx)
    from .service_host import host_class

    return host_class(ctx)(ctx)


WARM_UP = {
    "ingress": ("dynamod.runtime.components.frontend", "dynamod.runtime.components.processor", "uvloop"),
    "worker": ("dynamod.runtime.components.worker", "dynamod.preprocess.card", "dynamod.preprocess.locate", "uvloop"),
}


def warm_up(kind: str) -> None:
    """Import what a process of this kind needs whatever its plan says; see spawn.py."""
    for module in WARM_UP.get(kind, ()):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)


def settle_garbage() -> None:
    """What the start has made stays: the collector need not look at it again, and may come less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def main() -> None:
    """Entry point of the process."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    if len(sys.argv) > 2:
        warm_up(sys.argv[2])
    payload, fds = receive_plan(sock)
    plan = decode(payload)
    sock.setblocking(False)
    os.environ.update(plan.env)
    from dynamod.observe.logs import configure

    configure(component=plan.name)
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        code = runner.run(Host(plan, sock, fds).run())
    os._exit(code) if code else sys.exit(0)


if __name__ == "__main__":
    main()
