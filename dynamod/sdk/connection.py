"""What all runtimes of a process share: its connection to the node, its actors, its transports; opened by the first,
closed by the last.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from dynamod import __version__
from dynamod.actor import Actor, Supervisor, System
from dynamod.discovery.link import LinkRegistry
from dynamod.kvcache.block_registry import BlockRegistry
from dynamod.message.errors import UserError
from dynamod.message.node import FromNode, Heartbeat, Hello, Refused, Said, Welcome
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.attach import reach
from dynamod.runtime.context import ProcessContext
from dynamod.runtime.liveness import HEARTBEAT, clocks_of
from dynamod.runtime.paths import RunFolder, choose_socket, worker_socket_path
from dynamod.runtime.plan import HostPlan

from .logs import LogTap
from .shown import Shown
from .signals import Signals

log = logging.getLogger("dynamod.python")

JOINED = 30.0
"""Seconds to join the node, with a daemon that is started for it perhaps."""
ALONE = 2.0
"""Seconds without a daemon after which a file starts one: a service that restarts is back by then."""
GRACE_VARIABLE = "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"
GRACE = 30.0
"""Seconds for open requests to finish when a process shuts down; the variable says otherwise."""
IMPATIENT = 3.0
"""The same after a Ctrl-C: a person waits in front of the terminal."""

PATIENCE_VARIABLE = "DYNAMOD_HEARTBEAT_TIMEOUT"
"""Seconds that this process may be without a heartbeat, whatever the node's own setting is."""

OWN = ("registry", "root")
"""Actors of ours in addition to those of components."""

_connections: dict[asyncio.AbstractEventLoop, "Connection"] = {}


class Connection:
    """One per event loop: each call of `acquire` needs a call of `release`."""

    def __init__(self) -> None:
        self.process_context: ProcessContext
        self.users = 0
        self.ends: dict[Callable[[float], object], None] = {}  # what each runtime does to end, in order
        self.cuts: dict[Callable[[], object], None] = {}  # what each endpoint does to end at once
        self.shown = Shown(lambda: self.process_context.registry)
        self.loop = asyncio.get_running_loop()
        self._root = Actor()  # owns the tasks of the transports
        self._supervisors: dict[str, Supervisor] = {}
        self._starting = asyncio.Lock()
        self._block_registries: dict[tuple[str, str], BlockRegistry] = {}
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._welcome: asyncio.Future[Welcome] = self.loop.create_future()
        self.unused = asyncio.Event()  # its last user has left
        for future in (self._opened, self._welcome):  # perhaps no caller asks
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._absent = 0.0  # since when there is no daemon
        # a task of its own, whose end `release` of the last user waits for: users come and go in any order
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self.loop)

    async def ready(self) -> None:
        """Wait until it is open. Raises UserError when the node cannot be joined."""
        await asyncio.shield(self._opened)

    async def release(self) -> None:
        """One user less; after the last everything is closed."""
        self.users -= 1
        if self.users == 0:
            self.unused.set()
            await self.closed()

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        await asyncio.wait([asyncio.wrap_future(self._life)])

    def block_registry(self, namespace: str, component: str) -> BlockRegistry:
        """What the engine of a component publishes of itself."""
        return self._block_registries.setdefault((namespace, component), BlockRegistry(f"{namespace}.{component}"))

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Start a task that ends with the connection."""
        return self._root.context.task(coro, name)

    async def supervisor(self, component: str) -> Supervisor:
        """The supervisor of a component's endpoints: `top` knows the actor by the component's name."""
        name = component.replace("/", "%2F")
        name = f"{name}~" if name in OWN else name
        async with self._starting:
            if name not in self._supervisors:
                self._supervisors[name] = await self.process_context.system.supervisor(name)
        return self._supervisors[name]

    async def _live(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                self.process_context = await self._open(stack)
                stack.enter_context(Signals(self.loop, self._signalled, self._cut))
                self._opened.set_result(None)
                await self.unused.wait()
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
        grace_of(GRACE)  # a wrong one is an error now, not at the end
        patience = clocks_of(()).heartbeat if os.environ.get(PATIENCE_VARIABLE) else 0.0
        path = choose_socket().absolute()
        system = await stack.enter_async_context(System())
        await system.ready(system.start("root", lambda: self._root, restart="temporary"), timeout=5)
        folder = RunFolder(path)
        stack.callback(folder.remove)
        hello = Hello(
            script_name(), os.getpid(), version=__version__, kind="file", patience=patience, protocol=PROTOCOL
        )

        registry = LinkRegistry(
            hello,
            lambda make: reach(path, make, start=self._starts()),
            take=self._take,
            handler=self._answer,
            welcomed=self._welcomed,
            lost=self._lost,
            keeps=True,
        )
        # no other graph has this name: what it begins with says which workers are about to be replaced by such as us
        graph = f"python of process {os.getpid()}"
        plan = HostPlan(graph, script_name(), 0, (), str(worker_socket_path(folder.path, f"{script_name()}.0")))
        context = await ProcessContext.open(plan, system, self._root.context.task, registry)
        stack.push_async_callback(system.root.stop_child, "registry")
        stack.push_async_callback(context.close)
        self.process_context = context
        try:
            async with asyncio.timeout(JOINED):
                welcome = await self._welcome
        except TimeoutError:
            text = f"the node at {path} gave no lease within {JOINED:g} s"
            raise UserError(text, "see dynamo status") from None
        context.rename(welcome.process)
        stack.enter_context(LogTap(welcome.process, self.loop, context.registry.send))
        self.spawn(self._heartbeat(context), "heartbeat")
        return context

    # The daemon.

    def _starts(self) -> bool:
        """Whether to start a daemon: at first, and when the one we had has been gone for a while."""
        return not self._welcome.done() or (bool(self._absent) and self.loop.time() - self._absent > ALONE)

    def _welcomed(self, message: Welcome) -> None:
        self._absent = 0.0
        if not self._welcome.done():
            self._welcome.set_result(message)
            return
        log.info("joined the daemon of this machine (process %d)", message.pid)
        self.loop.call_soon(self.shown.tell_all)

    def _lost(self, why: str) -> None:
        if self._absent == 0.0 and self._welcome.done():
            self._absent = self.loop.time()
            log.warning("%s; continuing with the last known view", why)

    def _take(self, message: FromNode) -> None:
        if isinstance(message, Said):
            self.process_context.transport.told(message)
        elif isinstance(message, Refused) and not self._welcome.done():
            self._welcome.set_exception(UserError(message.error, message.hint))

    async def _heartbeat(self, context: ProcessContext) -> None:
        """From the first endpoint on: a process that serves nothing may keep its loop busy, loading a model."""
        await self.shown.serves.wait()
        while True:
            context.registry.send(Heartbeat())
            await asyncio.sleep(HEARTBEAT)

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if command != "stop":
            return await self.process_context.answer(command, arguments)
        log.info("dynamo stop: stopping")
        self._end_all(grace_of(GRACE))
        return None

    # The end.

    def _signalled(self, name: str) -> None:
        log.info("%s: stopping", name)
        self._end_all(grace_of(IMPATIENT if name == "SIGINT" else GRACE))

    def _end_all(self, grace: float) -> None:
        for end in list(self.ends):
            end(grace)

    def _cut(self) -> None:
        for cut in list(self.cuts):
            cut()


async def acquire() -> Connection:
    """The connection of the running loop, opened when it is not. Raises UserError."""
    loop = asyncio.get_running_loop()
    while (connection := _connections.get(loop)) is not None and connection.unused.is_set():
        await connection.closed()
    if connection is None:
        connection = _connections[loop] = Connection()
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
