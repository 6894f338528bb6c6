"""Starting and ending a node: the foreground commands and the `dynamod` service both go through `run`."""

import asyncio
import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynamod.actor import ActorUnreachable, System
from dynamod.daemon.node import Node, Ping
from dynamod.daemon.notify import Notifier
from dynamod.daemon.reload import HANDED_OVER, Kept, Wanted
from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.spawn import drop_spares
from dynamod.graph.graph import PROCESSOR
from dynamod.message.control import FINISH
from dynamod.message.errors import UserError
from dynamod.runtime.components.served import ServedModel

from .interrupt import Interrupts, Talk
from .served import Models
from .tables import table

__all__ = ["Options", "Wanted", "run", "say"]

log = logging.getLogger("dynamod.daemon")


def say(text: str) -> None:
    """Print at once, into a pipe too. A reader that has left (`dynamo serve | head`) is no reason to end."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@dataclass(frozen=True, slots=True)
class Options:
    """How a node runs. `must_hold`: refuse to join another daemon. `foreground`: print, and end with the graph.

    `changed` is called whenever a graph has come or gone after the start, `reload` on SIGHUP. `talk` runs when the
    graph is ready, and the command ends with it.
    """

    socket: Path
    title: str
    wanted: Sequence[Wanted] = ()
    must_hold: bool = False
    foreground: bool = True
    reload: Callable[[Node, float], Awaitable[None]] | None = None
    changed: Callable[[Node], None] | None = None
    echo: Callable[[str], None] = field(default=say)
    talk: Talk | None = None


def run(options: Options) -> int:
    """Run until stopped; returns the exit code. Raises UserError for what can be mended before anything runs."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_live(options))


async def _live(options: Options) -> int:
    notifier = Notifier(os.environ)
    async with System() as system:
        node = Node(system, options.socket, title=options.title, must_hold=options.must_hold)
        ref = system.start("node", lambda: node, restart="temporary", shutdown=20.0)
        try:
            await system.ready(ref, timeout=30)
        except ActorUnreachable:
            error = getattr(system.reason_of(ref), "error", None)
            if isinstance(error, UserError):
                raise error from None
            raise
        interrupts = Interrupts()
        hangup = _signals(node, interrupts)
        session = _Session(node, options, interrupts)
        try:
            for wanted in options.wanted:
                try:
                    await session.start(wanted)
                except Exception as error:
                    if wanted.origin != HANDED_OVER:
                        raise
                    text = error.line() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                    node.failed[wanted.called] = Kept(wanted.graph, text)
                    log.error("graph %s, handed over before, cannot start: %s", wanted.called, text)
            if (changed := options.changed) is not None:
                node.graphs_changed = lambda: changed(node)
            node.context.task(session.watch(), "watch graphs")
            if notifier.watchdog_interval:
                node.context.task(_watchdog(node, notifier, notifier.watchdog_interval), "watchdog")
            notifier.ready(_status(node))
            if (reload := options.reload) is not None:
                node.reload = lambda finish: reload(node, finish)
            node.context.task(_reloads(hangup, node, notifier, options), "reload")
            await node.stopped.wait()
        finally:
            notifier.stopping()
            await system.root.stop_child("node")
    return session.code


class _Session:
    """What the person in front of the terminal sees."""

    def __init__(self, node: Node, options: Options, interrupts: Interrupts) -> None:
        self._node, self._options, self._interrupts = node, options, interrupts
        self.code = 0
        self._runners: list[GraphRunner] = []
        self._models = Models(node.watch, self._model_added, node.changed)

    async def start(self, wanted: Wanted) -> None:
        name = await self._node.claim(wanted.called, exact=bool(wanted.name))
        self._runners.append(await self._node.start_graph(name, wanted.graph, origin=wanted.origin))

    async def watch(self) -> None:
        """Say when the graphs are ready; end a foreground command whose graph cannot start."""
        runners = self._runners
        if not runners:
            return
        await self._node.until(lambda: all(map(self._is_ready, runners)) or any(r.fatal() for r in runners))
        drop_spares()
        fatal = [row for runner in runners for row in runner.fatal()]
        if fatal:
            if self._options.foreground:  # a service stays: its log has it, ps shows it, and restart tries again
                for row in fatal:
                    print(f"error: {row.component} cannot start: {row.last_error}", file=sys.stderr)
                self.code = 1
                self._node.stop()
            return
        for runner in runners:
            self._print_ready(runner)
        if self._options.talk is not None:
            await self._talk(self._options.talk, runners[0].urls()[0])

    async def _talk(self, talk: Talk, url: str) -> None:
        try:
            self.code = await talk(self._interrupts, url)
        except UserError as error:
            print(f"error: {error.line()}", file=sys.stderr)
            self.code = 1
        except Exception:
            log.exception("the talk failed by a mistake of ours")
            self.code = 1
        self._node.stop()

    def _live(self) -> list[GraphRunner]:
        """Without those that have been stopped meanwhile."""
        return [runner for runner in self._runners if self._node.graphs.get(runner.name) is runner]

    def _is_ready(self, runner: GraphRunner) -> bool:
        return runner.ready() and self._models.ready(runner)

    def _print_ready(self, runner: GraphRunner) -> None:
        rows = [(row.component, row.process, row.state, str(row.pid)) for row in runner.rows()]
        text = table(("COMPONENT", "PROCESS", "STATE", "PID"), rows)
        where = ", ".join(runner.urls())
        self._options.echo(f"{text}\n{runner.name} ready{': ' + where if where else ''}")

    def _model_added(self, served: ServedModel) -> None:
        row = (served.type, served.model, served.namespace, served.component, served.endpoint)
        head = ("MODEL TYPE", "MODEL NAME", "NAMESPACE", "COMPONENT", "ENDPOINT")
        if self._options.foreground and self._serves_clients():
            self._options.echo(f"Added new {served.type} model {served.model}\n{table(head, [row])}")
        else:
            log.info("added %s model: %s", served.type, served.model)

    def _serves_clients(self) -> bool:
        specs = [spec for runner in self._runners for spec in runner.graph.services.values()]
        return any(spec.component_kind == PROCESSOR for spec in specs)


def _signals(node: Node, interrupts: Interrupts) -> asyncio.Event:
    """Handle signals. The event is set by SIGHUP."""
    loop = asyncio.get_running_loop()
    asked = 0

    def end(name: str) -> None:
        nonlocal asked
        if name == "SIGINT" and not asked and interrupts.interrupt():
            return
        asked += 1
        if asked == 1:
            log.info("%s: stopping", name)
            node.stop()
        else:
            log.warning("%s again: ending at once", name)
            os._exit(130)  # the lifelines close, and every child ends itself

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number.name)
    hangup = asyncio.Event()
    had_terminal = _has_terminal()

    def hung_up() -> None:
        if had_terminal and not _has_terminal():  # the window was closed
            end("SIGHUP")
        else:
            hangup.set()

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        loop.add_signal_handler(signal.SIGHUP, hung_up)
    return hangup


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _reloads(hangup: asyncio.Event, node: Node, notifier: Notifier, options: Options) -> None:
    """One reload after the other; a SIGHUP during one leads to another."""
    while True:
        await hangup.wait()
        hangup.clear()
        if options.reload is None:
            log.info("SIGHUP: nothing to reload, this command has no file of its own")
            continue
        log.info("SIGHUP: reloading")
        notifier.reloading()
        try:
            await options.reload(node, FINISH)
        except UserError as error:
            log.error("nothing reloaded: %s", error.line())
        except Exception:
            log.exception("the reload failed")
        notifier.ready(_status(node))


def _status(node: Node) -> str:
    count = len(node.graphs)
    return f"serving {count} graph{'' if count == 1 else 's'}"


async def _watchdog(node: Node, notifier: Notifier, interval: float) -> None:
    """Tell systemd that we live, after a round trip through the node's own mailbox."""
    while True:
        try:
            await node.context.ref.ask(Ping(), timeout=interval)
        except TimeoutError:
            log.error("the daemon does not answer itself; the service manager is not told that it lives")
        else:
            notifier.watchdog()
        await asyncio.sleep(interval)
