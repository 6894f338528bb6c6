"""An OS process as an actor: it crashes when the process ends, so supervisors restart it like any other child."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Actor, Reason
from dynamod.message.errors import DynamodError
from dynamod.message.node import Heartbeat
from dynamod.message.rows import Activity
from dynamod.runtime.liveness import Clocks
from dynamod.runtime.plan import EXIT_USER_ERROR, HostPlan, encode
from dynamod.transport.waiting import comes

from .exits import EXIT, crash, described, memory_kills
from .link import Connection
from .scaling import answer
from .spawn import Child, Origin, take_spare

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("dynamod.daemon")

STOP_GRACE = 3.0
"""Seconds for a process to end after SIGTERM."""


class ProcessEnded(DynamodError):
    """A component process ended on its own. `permanent`: it said that another start cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class ProcessFacts(Activity, frozen=True):
    """What the daemon knows of one process. `beat_age`: seconds since its last heartbeat.

    `silent`: why it counts as stuck, empty when it does not. `roles`: of its workers.
    """

    name: str
    pid: Annotated[int, Meta(description="Id of the process.")]
    components: dict[str, str]
    detail: str
    beat_age: Annotated[float | None, Meta(description="Time since the last heartbeat.", extra={"unit": "seconds"})]
    uptime: Annotated[float, Meta(description="Time since the process was started.", extra={"unit": "seconds"})]
    silent: str = ""
    roles: dict[str, str] = msgspec.field(default_factory=dict[str, str])


LAST_WORDS = 0.5
"""Seconds for the output of a process that has ended: what it has started may keep the pipes open."""
TURNS = 50
"""Turns of the loop after that, in which the loop reads what the process has sent. A few are enough."""


class ProcessRecord:
    """What is known of one process, published for reading: an actor of ours owns it, or it came on its own."""

    def __init__(self, name: str, pid: int = 0, connection: Connection | None = None) -> None:
        self.name, self.pid, self.connection = name, pid, connection
        self.born = time.monotonic()
        self.expected: dict[str, str] = {}  # components before the process says anything
        self.ready = self.ended = False
        self.grace = 0.0  # seconds that its open answers get to finish when it is stopped

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.born

    @property
    def states(self) -> Mapping[str, str]:
        """The state of each component."""
        return {**self.expected, **(self.connection.reported.states if self.connection is not None else {})}

    @property
    def why(self) -> str:
        """Why it counts as unresponsive; empty when it does not."""
        return self.connection.why if self.connection is not None and not self.ended else ""

    @property
    def answers(self) -> bool:
        """Whether it is worth asking: it has started, and responds."""
        return self.ready and not self.why and not self.ended

    async def set_grace(self, seconds: float) -> None:
        """Give its open answers another time to finish; a process that does not respond keeps its own."""
        self.grace = seconds
        with contextlib.suppress(TimeoutError, DynamodError):
            await self.ask("grace", {"seconds": seconds}, timeout=1.0)

    @property
    def to_stop(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return max(STOP_GRACE, self.grace + 1.0)

    async def ask(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        """Ask the process. Raises TimeoutError, or DynamodError with the process's own message."""
        if self.connection is None or self.ended:
            raise DynamodError("the process has not started" if self.connection is None else "the process has ended")
        return await self.connection.channel.ask(command, arguments, timeout=timeout)

    def facts(self) -> ProcessFacts:
        """A snapshot of the process."""
        connection = self.connection
        beats = connection.heartbeats if connection is not None else None
        beat = beats.last if beats is not None else Heartbeat()
        return ProcessFacts(
            name=self.name,
            pid=self.pid,
            components=dict(self.states),
            detail=connection.reported.detail if connection is not None else "",
            beat_age=beats.age if beats is not None else None,
            uptime=self.age,
            silent=self.why,
            roles=dict(connection.reported.roles) if connection is not None else {},
            doing=connection.doing if connection is not None else "",
            slow=beats is not None and beats.verdict.state == "slow",
            progress_age=beats.progress_age if beats is not None else None,
            running=beat.running,
            waiting=beat.waiting,
            phases=connection.reported.phases.seconds() if connection is not None else {},
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """What a process is started with.

    `environ`: its variables. `fds`: listening sockets that it inherits. `warm`: the kind of spare process that may
    become it. `command`: the interpreter of the command that gave the graph; empty: `origin.python`.
    """

    plan: HostPlan
    origin: Origin
    environ: Mapping[str, str]
    fds: Sequence[int] = ()
    warm: str = ""
    clocks: Clocks = Clocks()
    command: str = ""


class Process(Actor):
    """Starts `python -m dynamod.runtime.host`, hands it the plan, and is Ready when all its components are.

    Stop: SIGTERM, then SIGKILL to the whole group STOP_GRACE seconds later, or a second after the grace of open
    answers. Whatever the child started dies with it.
    """

    def __init__(self, node: "Node", launch: Launch, record: ProcessRecord) -> None:
        self._node, self._launch, self._record = node, launch, record
        self._child: Child | None = None
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._exited = asyncio.Event()
        self._closed = asyncio.Event()  # its connection is
        self._memory_kills = 0
        self._killed = ""  # why we have killed it
        self._draining = False
        record.expected = {service.name: "Starting" for service in launch.plan.services}

    async def started(self) -> None:
        """Spawn the child and wait until its components are Ready."""
        record, launch, plan = self._record, self._launch, self._launch.plan
        snapshot = await self._node.code.for_python(launch.command or launch.origin.python)
        if snapshot is not None:
            plan = msgspec.structs.replace(plan, code=str(snapshot.folder))
        child = take_spare(launch.warm, launch.origin, launch.environ)
        self._child = child = child or Child.start(launch.environ, launch.warm, launch.origin, snapshot)
        self._memory_kills = memory_kills()
        record.pid = child.pid
        child.send_plan(encode(plan), launch.fds)
        self._node.changes.notify()
        out, err = await child.outputs()
        readers = [
            self.context.task(self._read(out, "out"), "stdout"),
            self.context.task(self._read(err, "err"), "stderr"),
        ]
        record.connection = connection = await self._node.link.adopt(child.sock, plan.name, launch.clocks)
        owner = connection.owner
        owner.stated, owner.cause, owner.kill = self._stated, self._cause, self._kill
        owner.answer = partial(answer, self._node, plan.graph)
        connection.on_close(self._disconnected)
        self.context.task(self._wait(readers), "wait")
        await self._ready.wait()
        record.ready = True
        self._node.changes.notify()

    async def drained(self) -> None:
        """Tell the child to drain and wait until it has ended."""
        self._draining = True
        await self._record.ask("drain", timeout=5.0)
        await self._ended.wait()

    async def stopping(self, reason: Reason) -> None:
        """End the child and all it started."""
        child = self._child
        if child is None:
            return
        self._draining = True
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            seconds = self._record.to_stop
            try:
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
            except (TimeoutError, asyncio.CancelledError):
                log.warning("%s did not end within %g s and is killed", self._launch.plan.name, seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # what is left of it: it is its own session, so the group has its pid
        if child.returncode is None:
            await child.wait()
        self._record.ended = True
        self._node.changes.notify()

    def inspection(self) -> dict[str, Any]:
        """The process's facts."""
        facts: dict[str, Any] = msgspec.to_builtins(self._record.facts())
        return facts

    def _stated(self) -> None:
        if all(value == "Ready" for value in self._record.states.values()):
            self._ready.set()

    async def _cause(self, left: bool) -> str:
        """Why the child crashed, whose connection has closed; empty when it was ended on purpose."""
        child = self._child
        if self._draining or child is None or not await comes(self._exited, EXIT):
            return ""
        assert child.returncode is not None
        return self._killed or crash(child.returncode, left=left, out_of_memory=memory_kills() > self._memory_kills)

    def _disconnected(self) -> None:
        """A child ends on its own after its connection, unless it is stopped or hangs: nothing else would tell then."""
        self._closed.set()
        if self.context.cell.alive and not self._exited.is_set():
            self.context.task(self._end_disconnected(self._launch.clocks.until_kill), "end of a process")

    async def _end_disconnected(self, seconds: float) -> None:
        if not await comes(self._exited, seconds):
            self._kill(f"without a connection for {seconds:g} s")

    def _kill(self, why: str) -> None:
        """The child has been unresponsive for too long; the supervisor starts it again."""
        child = self._child
        if child is not None and child.returncode is None:
            log.error("%s is killed: it has been %s", self._launch.plan.name, why)
            self._killed = why
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)

    async def _read(self, stream: asyncio.StreamReader, which: str) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line above the reader's limit: what is buffered was dropped
                continue
            if not line:
                return
            self._node.logs.output(self._launch.plan.name, which, line)

    async def _wait(self, readers: Sequence[asyncio.Task[Any]]) -> None:
        assert self._child is not None
        code = await self._child.wait()
        self._exited.set()
        await last_words(readers, self._closed)
        self._record.ended = True
        self._ended.set()
        if self._draining:
            return
        detail = self._record.facts().detail
        assert self._record.connection is not None
        phase = self._record.connection.reported.phases.current
        how = f"killed, it had been {self._killed}" if self._killed else described(code, phase)
        if code == EXIT_USER_ERROR and detail:
            raise ProcessEnded(detail, permanent=True)
        raise ProcessEnded(f"{how}{': ' + detail if detail and code > 0 else ''}", permanent=code == EXIT_USER_ERROR)


async def last_words(readers: Sequence[asyncio.Task[Any]], closed: asyncio.Event, seconds: float = LAST_WORDS) -> None:
    """Wait for the last lines and the last state of a process that has ended, before its end is reported.

    On a busy machine the deadline may pass before the loop has read the last state, so turns of the loop count, too:
    without that state the reason of a failure for good would be lost.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.wait(readers)
            await closed.wait()
    for _ in range(TURNS):
        if closed.is_set():
            break
        await asyncio.sleep(0)
