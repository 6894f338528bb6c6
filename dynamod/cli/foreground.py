"""A command that serves in a terminal: a session of the daemon with one graph, which ends with the command."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynamod import __version__
from dynamod.actor import System
from dynamod.discovery.link import LinkRegistry
from dynamod.graph.absolute import absolute
from dynamod.graph.graph import Graph
from dynamod.message.control import FINISH
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.node import Ended, FromNode, Hello, Output, Refused, Report, Welcome
from dynamod.observe.capture import LineReader, reemit
from dynamod.runtime.attach import reach
from dynamod.runtime.components.served import ServedModel

from .attach import Attachment
from .interrupt import Interrupts, Talk
from .served import Models
from .tables import table

log = logging.getLogger("dynamod.cli")

STARTED = 60.0
"""Seconds for the daemon to take the graph."""
STOPPED = 20.0
"""Seconds for the daemon to end it."""
HELD = 10_000
"""Lines of processes that may wait until an answer is printed."""
GONE = 5.0
"""Seconds for a daemon that ends with this command."""


class DaemonGone(DynamodError):
    """The daemon ended before it had greeted us."""


def say(text: str) -> None:
    """Print at once, into a pipe too. A reader that has left (`dynamo serve | head`) is no reason to end."""
    try:
        print(text, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@dataclass(frozen=True, slots=True)
class Request:
    """What a command wants to be served. `again` reads the graph anew, for SIGHUP and `dynamo reload`.

    `talk` runs when the graph is ready, and the command ends with it: nothing else is printed then.
    """

    graph: Graph
    title: str
    name: str = ""
    again: Callable[[], Graph] | None = None
    talk: Talk | None = None
    echo: Callable[[str], None] = field(default=say)


def serve(attachment: Attachment, request: Request) -> int:
    """Serve until the user, or somebody else, ends it; returns the exit code. Raises UserError."""
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


class _Foreground:
    """One session."""

    def __init__(self, path: Path, attachment: Attachment | None, request: Request) -> None:
        self._path, self._attachment, self._request = path, attachment, request
        self._interrupts = Interrupts(self._answer_ended)
        self._held: deque[Output] = deque(maxlen=HELD)
        self._welcome: asyncio.Future[Welcome]
        self._changed, self._stop, self._lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._readers: dict[str, LineReader] = {}
        self._report: Report | None = None
        self._components: list[str] = []
        self._ended = ""
        self._code = 0

    async def run(self) -> int:
        """Live; returns the exit code."""
        self._welcome = asyncio.get_running_loop().create_future()
        hello = Hello(self._request.title, os.getpid(), version=__version__, kind="session")
        async with System() as system:
            self._link = link = LinkRegistry(
                hello,
                self._connect,
                take=self._take,
                handler=self._answer,
                welcomed=self._welcomed,
                lost=self._has_lost,
            )
            system.start("link", lambda: link, restart="temporary")
            hangup = self._signals()
            try:
                with contextlib.suppress(asyncio.CancelledError):  # stopped while we waited for the daemon
                    await self._begin()
                link.context.task(self._reloads(hangup), "reload")
                link.context.task(self._watch(), "watch")
                await self._stop.wait()
            finally:
                await self._end()
        return self._code

    async def _connect(self, make: Callable[[], Any]) -> None:
        if self._attachment is not None:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(make, sock=self._attachment.sock)
        else:
            await reach(self._path, make, start=True)

    async def _begin(self) -> None:
        """Wait for the daemon, and give it the graph. Raises UserError, DaemonGone."""
        await self._welcome
        request, folder = self._request, Path.cwd()
        for prefix, watcher in self._models().items():
            self._link.watch(prefix, watcher)
        answer = await self._link.ask(
            "serve",
            {
                "graph": absolute(request.graph, folder).to_dict(),
                "name": request.name,
                "environ": dict(os.environ),
                "folder": str(folder),
                "python": sys.executable,
            },
            timeout=STARTED,
        )
        self._components = answer["components"]

    def _models(self) -> dict[str, Callable[[str, bytes | None], None]]:
        self.models = Models(self._model_added, self._changed.set)
        return self.models.watchers()

    # What the daemon says.

    @property
    def _greeted(self) -> bool:
        return self._welcome.done() and not self._welcome.cancelled() and self._welcome.exception() is None

    def _welcomed(self, message: Welcome) -> None:
        if not self._welcome.done():
            self._welcome.set_result(message)

    def _has_lost(self, why: str) -> None:
        self._lost.set()
        if not self._welcome.done():
            self._welcome.set_exception(DaemonGone(why))
        elif not self._stop.is_set() and self._greeted:
            print(f"error: the daemon of this machine has ended ({why}), and {self._name} with it", file=sys.stderr)
            self._code = 1
            self._stop.set()

    def _take(self, message: FromNode) -> None:
        match message:
            case Refused(error, hint, held):
                if not self._welcome.done():
                    self._welcome.set_exception(DaemonGone(error) if held else UserError(error, hint))
            case Report():
                self._report = message
                self._changed.set()
            case Ended(why):
                log.info("%s", why)
                self._stop.set()
            case Output():
                self._held.append(message)
                if not self._interrupts.busy:
                    self._answer_ended()
            case _:
                log.debug("unexpected message of the daemon: %s", type(message).__name__)

    def _answer_ended(self) -> None:
        """Print the lines that waited for the end of an answer: they would be in the middle of its last line."""
        while self._held:
            output = self._held.popleft()
            self._reader(output.process).feed("out" if output.stream == "out" else "err", output.line)

    async def _answer(self, command: str, arguments: dict[str, Any]) -> Any:
        if command != "graph":
            raise UserError(f"a command in a terminal does not answer {command}")
        if self._request.again is None:
            return None
        graph = await asyncio.to_thread(self._request.again)  # it imports the user's files: the loop must not wait
        return absolute(graph, Path.cwd()).to_dict()

    def _reader(self, process: str) -> LineReader:
        if process not in self._readers:
            self._readers[process] = LineReader(process, _enabled if process == "dynamod" else reemit)
        return self._readers[process]

    # The graph.

    @property
    def _name(self) -> str:
        return self._report.graph if self._report is not None else self._request.name or "its graph"

    async def _watch(self) -> None:
        """Say when the graph is ready; end when it cannot start."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            report = self._report
            rows = report.rows if report is not None else ()
            fatal = [row for row in rows if row["state"] == "Fatal"]
            if fatal:
                for row in fatal:
                    print(f"error: {row['component']} cannot start: {row['last_error']}", file=sys.stderr)
                self._code = 1
                self._stop.set()
                return
            if report is not None and rows and all(row["state"] == "Ready" for row in rows) and self._can_be_asked():
                break
        self._print_ready(report)
        if self._request.talk is not None:
            await self._talk(self._request.talk, report.urls[0])

    def _can_be_asked(self) -> bool:
        """Whether the models of the graph's own workers are served by its own ingress, if it has both here."""
        kinds = {self._request.graph.services[name].component_kind for name in self._components}
        return not {"processor", "worker"} <= kinds or self.models.served(self._name)

    async def _talk(self, talk: Talk, url: str) -> None:
        try:
            self._code = await talk(self._interrupts, url)
        except UserError as error:
            print(f"error: {error.line()}", file=sys.stderr)
            self._code = 1
        except Exception:
            log.exception("the chat client failed by a mistake of ours")
            self._code = 1
        self._stop.set()

    def _print_ready(self, report: Report) -> None:
        rows = [(row["component"], row["process"], row["state"], str(row["pid"])) for row in report.rows]
        text = table(("COMPONENT", "PROCESS", "STATE", "PID"), rows)
        where = ", ".join(report.urls)
        self._echo(f"{text}\n{report.graph} ready{': ' + where if where else ''}")

    def _model_added(self, served: ServedModel) -> None:
        row = (served.type, served.model, served.namespace, served.component, served.endpoint)
        head = ("MODEL TYPE", "MODEL NAME", "NAMESPACE", "COMPONENT", "ENDPOINT")
        if any(spec.component_kind == "processor" for spec in self._request.graph.services.values()):
            self._echo(f"Added new {served.type} model {served.model}\n{table(head, [row])}")

    def _echo(self, text: str) -> None:
        if self._request.talk is None:
            self._request.echo(text)

    # The end.

    async def _end(self) -> None:
        """Let the daemon end the graph; when it ends with it, wait until it is gone."""
        if self._lost.is_set() or not self._greeted:
            return
        with contextlib.suppress(DynamodError, TimeoutError):
            if await self._link.ask("stop", timeout=STOPPED):
                async with asyncio.timeout(GONE):
                    await self._lost.wait()

    def _signals(self) -> asyncio.Event:
        """Handle signals. The event is set by SIGHUP."""
        loop = asyncio.get_running_loop()
        asked = 0

        def end(name: str) -> None:
            nonlocal asked
            if name == "SIGINT" and not asked and self._interrupts.interrupt():
                return
            asked += 1
            if asked == 1:
                log.info("%s: stopping", name)
                self._stop.set()
                if not self._welcome.done():
                    self._welcome.cancel()
            else:
                log.warning("%s again: ending at once", name)
                os._exit(130)  # the connection closes, and the daemon ends the graph

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

    async def _reloads(self, hangup: asyncio.Event) -> None:
        """One reload after the other; a SIGHUP during one leads to another."""
        while True:
            await hangup.wait()
            hangup.clear()
            if self._request.again is None:
                log.info("SIGHUP: nothing to reload, this command has no file of its own")
                continue
            try:
                await self._link.ask("reload", {"timeout": FINISH}, timeout=2 * FINISH)
            except UserError as error:
                log.error("nothing reloaded: %s", error.line())
            except (DynamodError, TimeoutError) as error:
                log.error("the reload failed: %s", error)


def _enabled(record: logging.LogRecord) -> None:
    """The daemon's own records: shown as this command's flags say."""
    if logging.getLogger(record.name).isEnabledFor(record.levelno):
        record.__dict__.pop("component", None)
        reemit(record)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reap(pid: int) -> None:
    """Wait a moment for a daemon of ours that ends with us; one that others use goes on."""
    end = time.monotonic() + 1.0
    while pid and time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)
