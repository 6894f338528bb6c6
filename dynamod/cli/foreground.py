"""A command that serves in a terminal: a session of the daemon with one graph, which ends with the command."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dynamod import __version__
from dynamod.actor import System
from dynamod.discovery.link import LinkRegistry
from dynamod.graph.absolute import absolute
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.node import Ended, FromNode, Hello, Output, Refused, Report, Welcome
from dynamod.message.protocol import PROTOCOL
from dynamod.observe.backlog import Backlog
from dynamod.observe.memory import replacing
from dynamod.observe.progress import ProgressLine
from dynamod.runtime import garbage
from dynamod.runtime.attach import reach
from dynamod.runtime.components import is_ingress
from dynamod.runtime.components.served import ServedModel

from .arguments import configure_logs
from .attach import Attachment, take
from .interrupt import Interrupts, Talk, on_signals, reloads
from .lines import Lines
from .output import leave_stdout
from .served import Models
from .tables import table

log = logging.getLogger("dynamod.cli")

STARTED = 60.0
"""Seconds for the daemon to take the graph."""
STOPPED = 20.0
"""Seconds for the daemon to end it."""
GONE = 5.0
"""Seconds for a daemon that ends with this command."""


class DaemonGone(DynamodError):
    """The daemon ended before it had greeted us."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a command wants to be served. `again` reads the graph anew, for SIGHUP and `dynamo reload`.

    `talk` runs when the graph is ready, and the command ends with it: nothing else is printed then. `timeout`: seconds
    that open answers get to finish at the end.
    """

    graph: Graph
    title: str
    name: str = ""
    again: Callable[[], Graph] | None = None
    talk: Talk | None = None
    timeout: float | None = None


def serve(request: Request, socket: str | None, verbose: int) -> int:
    """Serve in the daemon of this node until the user, or another command, ends it; returns the exit code.

    Raises UserError.
    """
    configure_logs(verbose)
    attachment = take(socket)
    try:
        return _serve(attachment, request)
    except KeyboardInterrupt:  # a second Ctrl-C, when the event loop had ended already
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing but the interpreter's end is left


def _serve(attachment: Attachment, request: Request) -> int:
    first: Attachment | None = attachment
    for _ in range(5):
        try:
            return asyncio.run(_Foreground(attachment.path, first, request).run())
        except DaemonGone:  # it was about to end when we came: the next one is started apart, we may have threads now
            first = None
            time.sleep(0.1)
        finally:
            _reap(attachment.pid)
    raise UserError(f"the daemon at {attachment.path} ends again and again", "see dynamo doctor")


@dataclass(slots=True)
class _Exit:
    """The end of the command: `stop` is set when it ends, `code` is its exit code. `signals`: how many have come."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    code: int = 0
    signals: int = 0


class _Foreground:
    """One session."""

    def __init__(self, path: Path, attachment: Attachment | None, request: Request) -> None:
        self._path, self._attachment, self._request = path, attachment, request
        self._interrupts = Interrupts(lambda: self._lines.flush())
        self._lines = Lines(lambda: self._interrupts.busy)
        self._changed, self._lost, self._hangup = (asyncio.Event() for _ in range(3))
        self._exit = _Exit()
        self._models = Models(self._model_added, self._changed.set)
        self._report: Report | None = None
        self._components: list[str] = []
        self._progress = ProgressLine(lambda text: _output.put(sys.stderr, text))

    async def run(self) -> int:
        """Live; returns the exit code."""
        garbage.resume_later()
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._link = link = LinkRegistry(
            Hello(self._request.title, os.getpid(), version=__version__, kind="session", protocol=PROTOCOL),
            self._connect,
            take=self._take,
            handler=self._answer,
            welcomed=self._welcomed,
            lost=self._has_lost,
        )
        async with System() as system:
            system.start("link", lambda: link, restart="temporary")
            had_terminal = _has_terminal()
            on_signals(self._end_by, lambda: self._hung_up(had_terminal))
            try:
                try:
                    await self._begin()
                except asyncio.CancelledError:  # stopped while we waited for the daemon
                    if not self._exit.signals:  # or before, by asyncio's own handler
                        self._end_by("SIGINT")
                link.context.task(reloads(self._hangup, self._reload, log), "reload")
                link.context.task(self._watch(), "watch")
                await self._exit.stop.wait()
            finally:
                await self._end()
        return self._exit.code

    async def _connect(self, make: Callable[[], Any]) -> None:
        if self._attachment is not None:
            await asyncio.get_running_loop().create_unix_connection(make, sock=self._attachment.sock)
        else:
            await reach(self._path, make, start=True)

    async def _begin(self) -> None:
        """Wait for the daemon, and give it the graph. Raises UserError, DaemonGone."""
        await self._welcome
        folder = Path.cwd()
        arguments = {
            "graph": absolute(self._request.graph, folder).to_dict(),
            "name": self._request.name,
            "environ": dict(os.environ),
            "folder": str(folder),
            "python": sys.executable,
            "timeout": self._request.timeout,
        }
        self._components = (await self._link.ask("serve", arguments, timeout=STARTED))["components"]
        for prefix, watcher in self._models.watchers().items():  # only now: a refused graph adds no models
            self._link.watch(prefix, watcher)

    # What the daemon says.

    def _welcomed(self, message: Welcome) -> None:
        if not self._welcome.done():
            self._welcome.set_result(message)

    def _has_lost(self, why: str) -> None:
        self._lost.set()
        if not self._welcome.done():
            self._welcome.set_exception(DaemonGone(why))
        elif not self._exit.stop.is_set() and _greeted(self._welcome):
            self._fail(f"the daemon of this machine has ended ({why}), and {self._name} with it")

    def _fail(self, *problems: str) -> None:
        self._progress.end()
        for problem in problems:
            _print(f"error: {problem}", sys.stderr)
        self._leave(1)

    def _leave(self, code: int) -> None:
        """End with this code. A talk ends first: what it prints or writes afterwards would be about our own end."""
        self._exit.code = code
        self._interrupts.interrupt()
        self._exit.stop.set()

    def _take(self, message: FromNode) -> None:
        match message:
            case Refused(error, hint, held):
                if not self._welcome.done():
                    self._welcome.set_exception(DaemonGone(error) if held else UserError(error, hint))
            case Report():
                self._report = message
                if not self._exit.stop.is_set():
                    self._progress.show(
                        "; ".join(dict.fromkeys(row["detail"] for row in message.rows if row["detail"]))
                    )
                self._changed.set()
            case Ended(why):
                self._progress.end()
                _print(why, sys.stderr)
                self._leave(0 if self._request.talk is None else 1)
            case Output():
                self._lines.take(message)
            case _:
                log.debug("unexpected message of the daemon: %s", type(message).__name__)

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if command != "graph":
            raise UserError(f"a command in a terminal does not answer {command}")
        if self._request.again is None:
            return None
        with replacing(row["pid"] for row in (self._report.rows if self._report is not None else ())):
            graph = await asyncio.to_thread(self._request.again)  # it imports the user's files: the loop must not wait
        return absolute(graph, Path.cwd()).to_dict()

    # The graph.

    @property
    def _name(self) -> str:
        return self._report.graph if self._report is not None else self._request.name or "its graph"

    async def _watch(self) -> None:
        """Say when the graph is ready; end when it cannot start."""
        while (report := self._report) is None or not self._ready(report):
            await self._changed.wait()
            self._changed.clear()
            rows = self._report.rows if self._report is not None else ()
            if fatal := given_up(rows):
                self._lines.release(fatal)
                self._fail(*(f"{', '.join(names)} cannot start: {why}" for why, names in fatal.items()))
                return
            if self._asks_itself and (refused := self._models.refused(self._name)):
                self._lines.release(refused.values())
                self._fail(*(f"model {name} cannot be served: {why}" for name, why in refused.items()))
                return
        self._lines.ready()
        if self._request.talk is not None:
            await self._talk(self._request.talk, report.urls[0])
            return
        cells = [(row["component"], row["process"], row["state"], str(row["pid"])) for row in report.rows]
        where = f": {', '.join(report.urls)}" if report.urls else ""
        _print(f"{table(('COMPONENT', 'PROCESS', 'STATE', 'PID'), cells)}\n{report.graph} ready{where}")

    def _ready(self, report: Report) -> bool:
        """All is ready, and the models of the graph's own workers are served by its own ingress, if it has both."""
        if not report.rows or any(row["state"] != "Ready" for row in report.rows):
            return False
        return not self._asks_itself or self._models.served(self._name)

    @property
    def _asks_itself(self) -> bool:
        """Whether the graph starts workers and an ingress for them."""
        services = [self._request.graph.services[name] for name in self._components]
        kinds = {one.component_kind for one in services if one.workers}
        return {"processor", "worker"} <= kinds

    async def _talk(self, talk: Talk, url: str) -> None:
        try:
            code = await talk(self._interrupts, url)
            self._exit.code = self._exit.code or code  # of what has ended the talk
            self._exit.stop.set()
        except UserError as error:
            self._fail(error.line())
        except OSError as error:
            leave_stdout()
            if isinstance(error, BrokenPipeError):  # `dynamo-run ... | head`: the reader has enough
                self._leave(0)
            else:
                self._fail(f"the answer cannot be written: {error.strerror or error}")
        except Exception:
            log.exception("the chat client failed by a mistake of ours")
            self._fail()

    def _model_added(self, served: ServedModel) -> None:
        services = self._request.graph.services.values()
        if self._request.talk is None and any(is_ingress(spec.component_kind) for spec in services):
            row = (served.type, served.model, served.namespace, served.component, served.endpoint)
            head = ("MODEL TYPE", "MODEL NAME", "NAMESPACE", "COMPONENT", "ENDPOINT")
            _print(f"Added new {served.type} model {served.model}\n{table(head, [row])}")

    # The end.

    async def _end(self) -> None:
        """Let the daemon end the graph; when it ends with it, wait until it is gone."""
        self._lines.release()
        if self._lost.is_set() or not _greeted(self._welcome):
            return
        with contextlib.suppress(DynamodError, TimeoutError):
            if await self._link.ask("stop", timeout=STOPPED + (self._request.timeout or 0.0)):
                async with asyncio.timeout(GONE):
                    await self._lost.wait()

    def _end_by(self, signal_name: str) -> None:
        if signal_name == "SIGINT" and not self._exit.signals and self._interrupts.interrupt():
            return
        self._exit.signals += 1
        self._progress.end("interrupted")
        if self._exit.signals > 1:
            log.warning("%s again: ending at once", signal_name)
            os._exit(130)  # the connection closes, and the daemon ends the graph
        log.info("%s: stopping", signal_name)
        self._leave(128 + signal.Signals[signal_name] if self._request.talk is not None else 0)
        if not self._welcome.done():
            self._welcome.cancel()

    def _hung_up(self, had_terminal: bool) -> None:
        if had_terminal and not _has_terminal():  # the window was closed
            self._end_by("SIGHUP")
        else:
            self._hangup.set()

    async def _reload(self) -> None:
        if self._request.again is None:
            log.info("SIGHUP: nothing to reload, this command has no file of its own")
        else:
            await self._link.ask("reload", {"timeout": FINISH}, timeout=2 * FINISH)


def _greeted(welcome: "asyncio.Future[Welcome]") -> bool:
    """Whether the daemon has accepted the session."""
    return welcome.done() and not welcome.cancelled() and welcome.exception() is None


def given_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Components that are Fatal, by the reason: those of one process share it."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["state"] == "Fatal":
            found.setdefault(row["last_error"], []).append(row["component"])
    return found


def _print(text: str, stream: TextIO | None = None) -> None:
    """Have a line printed at once, to stdout if no stream is given. A reader that stops to read stops nothing here."""
    _output.put(stream or sys.stdout, f"{text}\n")


def _write(stream: TextIO, text: str, _dropped: int) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a reader that has left (`dynamo serve | head`) is no reason to end
        if stream is sys.stdout:
            leave_stdout()


_output = Backlog(_write)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reap(pid: int) -> None:
    """Wait a moment for a daemon of ours that ends with us; one that others use continues."""
    end = time.monotonic() + 1.0
    while pid and time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)
