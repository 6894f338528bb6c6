"""What all runtimes of a process share: its place in the node, its actors, its mail; opened by the first, closed by the
last.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from dynamod.actor import Actor, Supervisor, System
from dynamod.actor.inspect import inspect_system
from dynamod.daemon.heartbeat import HEARTBEAT, PATIENCE
from dynamod.daemon.paths import worker_socket_path
from dynamod.daemon.stall import clocks_of
from dynamod.discovery.keys import Address
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.errors import UserError
from dynamod.message.node import FromNode, Heartbeat
from dynamod.runtime.context import ProcessContext
from dynamod.runtime.plan import HostPlan
from dynamod.runtime.process_context import leave, surround

from .graph import Served
from .signals import Signals
from .thread import NodeThread

log = logging.getLogger("dynamod.python")

LEASED = 30.0
"""Seconds to get a lease from the node."""
GRACE_VARIABLE = "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"
GRACE = 30.0
"""Seconds for open requests to finish when a process shuts down; the variable says otherwise."""
IMPATIENT = 3.0
"""The same behind a Ctrl-C: somebody waits in front of the terminal."""

PATIENCE_VARIABLE = "DYNAMOD_HEARTBEAT_TIMEOUT"
"""Seconds that this process may be silent, whatever the node's own setting is."""

OWN = ("registry", "root")
"""Actors of ours beside those of components."""

_connections: dict[asyncio.AbstractEventLoop, "Connection"] = {}


class _Root(Actor):
    """Owns the tasks of the process's mail."""


class Connection:
    """One per event loop: whoever calls `acquire` has to `release`."""

    def __init__(self) -> None:
        self.process_context: ProcessContext
        self.users = 0
        self.ends: dict[Callable[[float], object], None] = {}  # what each runtime does to end, in order
        self.cuts: dict[Callable[[], object], None] = {}  # what each endpoint does to end at once
        self.served: dict[str, None] = {}  # addresses
        self.loop = asyncio.get_running_loop()
        self._block_registries: dict[tuple[str, str], BlockRegistry] = {}
        self._shown: dict[Address, Served] = {}
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._unused = asyncio.Event()
        self._serves = asyncio.Event()
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())  # perhaps nobody asks
        self._thread: NodeThread | None = None
        self._life: concurrent.futures.Future[None]

    def open(self) -> None:
        """Begin to live; the task is this object's own, and `release` of the last user waits for its end.

        It can belong to none of the users: they come and go in any order.
        """
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self.loop)

    async def ready(self) -> None:
        """Wait until it is open. Raises UserError when the node cannot be joined."""
        await asyncio.shield(self._opened)

    async def release(self) -> None:
        """One user less; behind the last everything is closed."""
        self.users -= 1
        if self.users == 0:
            self._unused.set()
            await self.closed()

    @property
    def closing(self) -> bool:
        """Whether its last user has left."""
        return self._unused.is_set()

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        await asyncio.wait([asyncio.wrap_future(self._life)])

    def block_registry(self, namespace: str, component: str) -> BlockRegistry:
        """What the engine of a component tells of itself."""
        return self._block_registries.setdefault((namespace, component), BlockRegistry(f"{namespace}.{component}"))

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Start a task that ends with the connection."""
        cell = self.process_context.system.cell(self.process_context.system.ref("/root"))
        assert cell is not None
        return cell.actor.context.task(coro, name)

    async def supervisor(self, component: str) -> Supervisor:
        """The supervisor of a component's endpoints: `top` knows the actor by the component's name."""
        system, name = self.process_context.system, component.replace("/", "%2F")
        name = f"{name}~" if name in OWN else name
        ref = system.ref(f"/{name}") if system.root.child(name) else system.start(name, Supervisor, restart="temporary")
        await system.ready(ref, timeout=5)
        cell = system.cell(ref)
        assert cell is not None
        assert isinstance(cell.actor, Supervisor)
        return cell.actor

    def show(self, address: Address, state: str) -> None:
        """What `ps` says of a component: that of its endpoints, Ready if all are. An empty state takes one away."""
        before = self._shown.pop(address, None)
        if state:
            self._serves.set()
            self._shown[address] = Served(address.component, state, before.since if before else time.monotonic())
        rows: dict[str, Served] = {}
        for one in self._shown.values():
            known = rows.get(one.component)
            if known is None or known.state == "Ready":
                rows[one.component] = one
        if self._thread is not None:
            self._thread.show(tuple(rows.values()))

    async def _live(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                self.process_context = await self._open(stack)
                stack.enter_context(Signals(self.loop, self._signalled, self._cut))
                self._opened.set_result(None)
                await self._unused.wait()
        except Exception as error:
            if self._opened.done():
                log.exception("the connection to the node broke down")
            else:
                self._opened.set_exception(error)
        finally:
            if _connections.get(self.loop) is self:
                del _connections[self.loop]
            if not self._opened.done():
                self._opened.cancel()

    async def _open(self, stack: contextlib.AsyncExitStack) -> ProcessContext:
        grace_of(GRACE)  # a wrong one is told now, not at the end
        patience = clocks_of(()).heartbeat if os.environ.get(PATIENCE_VARIABLE) else 0.0
        system = await stack.enter_async_context(System())
        self._thread = thread = NodeThread(script_name(), self._answer, self._ended)
        stack.push_async_callback(thread.stop)
        place = await thread.start()
        ref = system.start("root", _Root, restart="temporary")
        await system.ready(ref, timeout=5)
        cell = system.cell(ref)
        assert cell is not None
        # no other graph has this name: what it begins with says which workers are about to be replaced by such as us
        plan = HostPlan(
            f"{place.graph} of process {os.getpid()}",
            place.process,
            0,
            (),
            str(place.link),
            str(worker_socket_path(place.folder, place.process.replace("/", "."))),
        )
        process_context = await surround(plan, system, cell.actor.context.task, self._word)
        stack.push_async_callback(system.root.stop_child, "registry")
        stack.push_async_callback(leave, process_context)
        try:
            await process_context.registry.leased(LEASED)
        except TimeoutError:
            raise UserError(
                f"the node at {place.link} gave no lease within {LEASED:g} s", "see dynamo status"
            ) from None
        if patience:
            process_context.registry.put(f"{PATIENCE}{os.getpid()}", f"{patience:g}".encode())
        cell.actor.context.task(self._heartbeat(process_context), "beat")
        return process_context

    async def _heartbeat(self, process_context: ProcessContext) -> None:
        """Signs of life of this loop, for the node's `heard.HeartbeatMonitor`.

        From the first endpoint on: whoever serves nothing may keep its loop busy, loading a model.
        """
        await self._serves.wait()
        while True:
            process_context.registry.say(Heartbeat(self.loop.time()))
            await asyncio.sleep(HEARTBEAT)

    async def _answer(self, command: str) -> Any:
        if command == "inspect":
            return inspect_system(self.process_context.system, "")
        from dynamod.runtime.statistics import process_text

        return process_text(self.process_context)

    def _word(self, message: FromNode) -> None:
        log.debug("unexpected word from the node: %s", type(message).__name__)

    # The end.

    def _signalled(self, name: str) -> None:
        log.info("%s: stopping", name)
        self._end_all(grace_of(IMPATIENT if name == "SIGINT" else GRACE))

    def _ended(self, why: str) -> None:
        log.info("%s: stopping", why)
        self._end_all(grace_of(GRACE))

    def _end_all(self, grace: float) -> None:
        for end in list(self.ends):
            end(grace)

    def _cut(self) -> None:
        for cut in list(self.cuts):
            cut()


async def acquire() -> Connection:
    """The connection of the running loop, opened when it is not. Raises UserError."""
    loop = asyncio.get_running_loop()
    while (connection := _connections.get(loop)) is not None and connection.closing:
        await connection.closed()
    if connection is None:
        connection = _connections[loop] = Connection()
        connection.open()
    connection.users += 1
    try:
        await connection.ready()
    except BaseException:
        await connection.release()
        raise
    return connection


def grace_of(default: float) -> float:
    """Seconds from the environment, or `default`. Raises UserError."""
    text = os.environ.get(GRACE_VARIABLE, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise UserError(f"{GRACE_VARIABLE}={text} is no number of seconds", "for example 30")
    return seconds


def script_name() -> str:
    """What the process is called: its file without `.py`."""
    stem = Path(sys.argv[0] if sys.argv else "").stem
    return re.sub(r"[^\w-]", "_", stem).strip("_-") or "python"
