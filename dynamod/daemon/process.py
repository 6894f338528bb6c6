"""An OS process as an actor: it crashes when the process ends, so supervisors restart it like any other child."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason
from dynamod.message.errors import DynamodError
from dynamod.message.node import Answer, Ask, Heartbeat, State
from dynamod.runtime.lifeline import Lifeline
from dynamod.runtime.plan import EXIT_USER_ERROR, HostPlan, encode

from .spawn import Child, take_spare
from .stall import Clocks, judge

log = logging.getLogger("dynamod.daemon")

LOOK = 0.1
"""Seconds between looks at the heartbeat."""

Output = Callable[[str, str, bytes], None]
"""Takes process name, stream ("out" or "err") and one line."""


class ProcessEnded(DynamodError):
    """A component process ended by itself. `permanent`: it said that another start cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class ProcessFacts(msgspec.Struct, frozen=True):
    """What the daemon knows of one process. `beat_age`: seconds since its last heartbeat. `silent`: why it is left
    alone, empty when it is not.
    """

    name: str
    pid: int
    components: dict[str, str]
    detail: str
    beat_age: float | None
    uptime: float
    silent: str = ""


class Process(Actor):
    """Starts `python -m dynamod.runtime.host`, hands it the plan, and is Ready when all its components are.

    Stop: SIGTERM, then SIGKILL to the whole group after `grace` seconds. Whatever the child started dies with it.
    """

    def __init__(
        self,
        plan: HostPlan,
        *,
        output: Output,
        changed: Callable[[], None],
        silent: Callable[[int, bool], None] = lambda _pid, _silent: None,
        environ: Mapping[str, str],
        fds: Sequence[int] = (),
        grace: float = 3.0,
        warm: str = "",
        clocks: Clocks = Clocks(),
    ) -> None:
        self.plan = plan
        self._clocks = clocks
        self._output = output
        self._changed = changed
        self._tell_silent = silent
        self._silent = ""
        self._environ = environ
        self._fds = fds
        self._grace = grace
        self._warm = warm
        self._child: Child | None = None
        self._lifeline = Lifeline(self._take, lambda: None, upper=True)
        self._states: dict[str, str] = {service.name: "Starting" for service in plan.services}
        self._detail = ""
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._asks: dict[int, asyncio.Future[Any]] = {}
        self._next_ask = 0
        self._born: float | None = None
        self._heartbeat: float | None = None
        self._step: tuple[float, int] | None = None  # when the engine's step began, and its tokens
        self._last_line = b""
        self._draining = False

    async def started(self) -> None:
        """Spawn the child and wait until its components are Ready."""
        self._born = self.context.now()
        self._child = child = take_spare(self._warm, self._environ) or Child(self._environ, self._warm)
        child.tell(encode(self.plan), self._fds)
        self._changed()
        out, err = await child.outputs()
        readers = [
            self.context.task(self._read(out, "out"), "stdout"),
            self.context.task(self._read(err, "err"), "stderr"),
        ]
        self.context.task(self._lifeline.run(child.sock), "lifeline")
        self.context.task(self._wait(readers), "wait")
        self.context.task(self._listen(), "listen")
        await self._ready.wait()

    async def drained(self) -> None:
        """Tell the child to drain and wait until it has ended."""
        self._draining = True
        await self.ask("drain", {}, timeout=5.0)
        await self._ended.wait()

    async def stopping(self, reason: Reason) -> None:
        """End the child and all it started."""
        child = self._child
        if child is None:
            return
        self._set_silent("")
        self._draining = True
        if child.returncode is None:
            _signal(child.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace):
                    await self._ended.wait()
            except (TimeoutError, asyncio.CancelledError):
                log.warning("%s did not end within %g s and is killed", self.plan.name, self._grace)
        _kill_group(child.pid)
        if child.returncode is None:
            await child.wait()
        self._changed()

    async def ask(self, command: str, arguments: dict[str, Any], *, timeout: float) -> Any:
        """Ask the child something. Raises TimeoutError, or DynamodError with the child's own message."""
        if self._ended.is_set():
            raise DynamodError("the process has ended")
        self._next_ask += 1
        number = self._next_ask
        future = self._asks[number] = asyncio.get_running_loop().create_future()
        try:
            self._lifeline.say(Ask(number, command, arguments))
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._asks[number]

    def facts(self) -> ProcessFacts:
        """A snapshot of the process."""
        now = self.context.now()
        return ProcessFacts(
            name=self.plan.name,
            pid=self._child.pid if self._child is not None else 0,
            components=dict(self._states),
            detail=self._detail,
            beat_age=now - self._heartbeat if self._heartbeat is not None else None,
            uptime=now - self._born if self._born is not None else 0.0,
            silent=self._silent,
        )

    @property
    def answers(self) -> bool:
        """Whether it is worth asking: it has started, and is heard."""
        return self._ready.is_set() and not self._silent and not self._ended.is_set()

    def inspection(self) -> dict[str, Any]:
        """The process's facts."""
        facts: dict[str, Any] = msgspec.to_builtins(self.facts())
        return facts

    def _take(self, message: State | Answer | Heartbeat) -> None:
        self._heartbeat = self.context.now()  # every word is a sign of life
        match message:
            case State(component, state, detail):
                self._states[component] = state
                self._detail = detail
                if all(value == "Ready" for value in self._states.values()):
                    self._ready.set()
                self._changed()
            case Answer(number, value, error):
                future = self._asks.get(number)
                if future is not None and not future.done():
                    if error:
                        future.set_exception(DynamodError(error))
                    else:
                        future.set_result(value)
            case Heartbeat(_, step, tokens):
                self._step = None if step is None else (self._heartbeat - step, tokens)
        self._judge()

    async def _listen(self) -> None:
        """Notice when the heartbeat stops. A late look says more about us than about the child."""
        looked = self.context.now()
        while True:
            await asyncio.sleep(LOOK)
            now = self.context.now()
            if now - looked > LOOK + 0.5 and self._heartbeat is not None:
                self._heartbeat = now
            looked = now
            self._judge()

    def _judge(self) -> None:
        if self._heartbeat is None or self._ended.is_set():
            return
        now = self.context.now()
        began, tokens = self._step or (None, 0)
        step = now - began if began is not None else None
        self._set_silent(judge(self._clocks, now - self._heartbeat, step, tokens))

    def _set_silent(self, why: str) -> None:
        before, self._silent = self._silent, why
        if bool(why) == bool(before):
            return
        assert self._child is not None
        if why:
            log.warning("%s has been %s: nothing is sent to it until it moves", self.plan.name, why)
        elif not self._ended.is_set():
            log.info("%s is heard again", self.plan.name)
        self._tell_silent(self._child.pid, bool(why))
        self._changed()

    async def _read(self, stream: asyncio.StreamReader, which: str) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line above the reader's limit: what is buffered was dropped
                continue
            if not line:
                return
            if which == "err" and line.strip():
                self._last_line = line
            self._output(self.plan.name, which, line)

    async def _wait(self, readers: Sequence[asyncio.Task[Any]]) -> None:
        assert self._child is not None
        code = await self._child.wait()
        await asyncio.wait(readers, timeout=0.5)  # its last words come before the news of its end
        self._ended.set()
        for future in self._asks.values():
            if not future.done():
                future.set_exception(DynamodError("the process has ended"))
        if self._draining:
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if code == EXIT_USER_ERROR and self._detail:
            raise ProcessEnded(self._detail, permanent=True)
        detail = self._detail if code > 0 else ""
        raise ProcessEnded(f"{how}{': ' + detail if detail else ''}", permanent=code == EXIT_USER_ERROR)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill_group(pid: int) -> None:
    """Kill what is left of the child's process group (it is its own session, so the group has its pid)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
