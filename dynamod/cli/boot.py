"""The daemon process: the `dynamod` service, and the one that a command forks when no daemon holds the node."""

import asyncio
import faulthandler
import importlib
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dynamod.actor import ActorError, ActorUnreachable, System
from dynamod.control.socket import ControlSocket
from dynamod.daemon.node import Node
from dynamod.daemon.notify import Notifier
from dynamod.daemon.reload import Kept, Wanted
from dynamod.daemon.spawn import drop_spares
from dynamod.message.control import FINISH, Ping
from dynamod.message.errors import UserError
from dynamod.runtime import garbage

from .interrupt import on_signals, reloads

log = logging.getLogger("dynamod.daemon")


@dataclass(frozen=True, slots=True)
class Options:
    """How a daemon runs. `ephemeral`: it ends with its last session; `first` is the connection of the first one.

    `prepare` is called when the wanted graphs have been started.
    """

    path: Path
    wanted: Sequence[Wanted] = ()
    ephemeral: bool = False
    first: socket.socket | None = None
    prepare: Callable[[Node], None] = lambda _node: None
    grace: float | None = None  # seconds that open answers get to finish; None: the daemon's default


def run(options: Options) -> int:
    """Run until stopped; returns the exit code. Raises UserError for what can be mended before anything runs."""
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1 PID` writes the stack of each thread to stderr
    fast = importlib.util.find_spec("uvloop") is not None
    factory = importlib.import_module("uvloop").new_event_loop if fast else None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_live(options))
    finally:
        drop_spares()


async def _live(options: Options) -> int:
    """Returns the exit code."""
    notifier = Notifier(os.environ)
    garbage.resume_later()
    async with System() as system:
        node = Node(system, options.path, control=ControlSocket, ephemeral=options.ephemeral, first=options.first)
        if options.grace is not None:
            node.graphs.grace = options.grace
        ref = system.start("node", lambda: node, restart="temporary", shutdown=20.0)
        try:
            await system.ready(ref, timeout=30)
        except ActorUnreachable:
            error = getattr(system.reason_of(ref), "error", None)
            if isinstance(error, UserError):
                raise error from None
            raise
        system.watch(ref, node.part_ended)
        hangup = asyncio.Event()
        on_signals(partial(_end, node), hangup.set, service=not options.ephemeral)
        try:
            for wanted in options.wanted:
                await _start(node, wanted)
            options.prepare(node)
            node.context.task(_say_ready(node), "watch graphs")
            if notifier.watchdog_interval:
                node.context.task(_watchdog(node, notifier, notifier.watchdog_interval), "watchdog")
            notifier.ready(_status(node))
            node.context.task(reloads(hangup, partial(_reload, node, notifier), log), "reload")
            await node.life.stopped.wait()
        finally:
            notifier.stopping()
            grace = node.graphs.grace if node.life.grace is None else node.life.grace
            await system.root.stop_child("node", timeout=grace + 20.0)
    return node.life.code


async def _start(node: Node, wanted: Wanted) -> None:
    """Start a graph of the service; one that was handed over before may fail, and is kept."""
    try:
        await node.graphs.start(wanted.called, wanted.graph, kept=wanted.kept)
    except Exception as error:
        if not wanted.kept:
            raise
        text = error.line() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        node.graphs.failed[wanted.called] = Kept(wanted.graph, text)
        log.error("graph %s, handed over before, cannot start: %s", wanted.called, text)


async def _say_ready(node: Node) -> None:
    """Log when the first graphs of a service are ready."""
    runners = list(node.graphs.running.values())
    if not runners:
        return
    await node.changes.until(lambda: all(runner.ready() or runner.fatal() for runner in runners))
    for runner in runners:
        if runner.ready():
            urls = ", ".join(runner.urls())
            log.info("graph %s ready%s", runner.name, f": {urls}" if urls else "", extra={"graph": runner.name})


def _end(node: Node, signal_name: str) -> None:
    """SIGINT or SIGTERM: end the daemon, at the second one at once."""
    if node.life.stopped.is_set():
        log.warning("%s again: ending at once", signal_name)
        os._exit(130)  # its connections close, and every process that it has started ends itself
    log.info("%s: stopping", signal_name)
    node.life.stop()


async def _reload(node: Node, notifier: Notifier) -> None:
    log.info("SIGHUP: reloading")
    notifier.reloading()
    try:
        await node.clients.reload_all(FINISH)
    finally:
        notifier.ready(_status(node))


def _status(node: Node) -> str:
    count = len(node.graphs.running)
    return f"serving {count} graph{'' if count == 1 else 's'}"


async def _watchdog(node: Node, notifier: Notifier, interval: float) -> None:
    """Tell systemd that we live, after a round trip through the node's own mailbox."""
    while True:
        try:
            await node.context.ref.ask(Ping(), timeout=interval)
        except ActorError as error:
            log.error("the daemon does not answer itself; the service manager gets no sign of life: %s", error)
        else:
            notifier.watchdog()
        await asyncio.sleep(interval)
