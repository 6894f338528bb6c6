"""Supervisors: actors that start, watch, restart and stop other actors. An OS process is an actor too (daemon/)."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from .actor import Actor, control
from .cell import Cell, Drain, Stop
from .envelope import Envelope
from .errors import ActorUnreachable, Crashed, Reason, RestartLimit
from .restart import Backoff, Child, Died, Policy, Restart, State, decide, started
from .statistics import ChildStatistics

if TYPE_CHECKING:
    from .ref import Ref

log = logging.getLogger("dynamod.actor")


@dataclass(frozen=True, slots=True)
class Spec:
    """How to make a child and how to treat it. `shutdown`: seconds from the request to stop until it is killed."""

    name: str
    factory: Callable[[], Actor]
    restart: Restart = "permanent"
    backoff: Backoff = Backoff()
    shutdown: float = 5.0


@dataclass(frozen=True, slots=True)
class _ChildDied:
    cell: Cell
    reason: Reason


class _FailedToStart(Actor):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def started(self) -> None:
        raise self._error


class Supervisor(Actor):
    """Keeps its children alive within `policy`. Children start in order, each when the one before is Ready."""

    def __init__(self, specs: Sequence[Spec] = (), policy: Policy = Policy()) -> None:
        self.policy = policy
        self._specs: dict[str, Spec] = {spec.name: spec for spec in specs}
        self._cells: dict[str, Cell] = {}
        self._state = State()
        self._last_error: dict[str, str] = {}
        self._pending: dict[str, Cell] = {}  # children that wait for their restart, and the incarnation that died
        self._stopping: set[str] = set()

    async def started(self) -> None:
        """Start the children in order."""
        for spec in list(self._specs.values()):
            self._start(spec)
            await self._wait_ready(spec.name)

    async def stopping(self, reason: Reason) -> None:
        """Stop the children in reverse order of their start."""
        self._pending.clear()  # no restart that is due may run into our own end
        for name in reversed([child.name for child in self._state.children]):
            await self.stop_child(name)

    def start_child(self, spec: Spec) -> "Ref":
        """Add a child and start it; returns at once.

        Raises ValueError when the name is taken by a live child, ActorUnreachable when this supervisor is not running.
        """
        if not self.context.cell.alive:
            raise ActorUnreachable(f"{self.context.ref.path} is not running")
        child = next((c for c in self._state.children if c.name == spec.name), None)
        if child is not None and not child.fatal:
            raise ValueError(f"{self.context.ref.path} already has a child {spec.name}")
        self._specs[spec.name] = spec
        self._state = self._state.without(spec.name)
        self._last_error.pop(spec.name, None)  # of an earlier child, whose restarts are not counted either
        self._start(spec)
        return self._cells[spec.name].ref

    async def stop_child(self, name: str, *, drain: bool = False, timeout: float | None = None) -> None:
        """End a child for good: ask it to, wait `shutdown` seconds (or `timeout`), then kill it. Unknown names pass."""
        spec = self._specs.pop(name, None)
        self._pending.pop(name, None)
        self._state = self._state.without(name)
        if spec is not None:
            await self._stop(name, timeout if timeout is not None else spec.shutdown, drain)

    async def restart_child(self, name: str, *, drain: bool = False, timeout: float | None = None) -> "Ref":
        """End a child and start it anew at once; the restart is not counted as a crash.

        Raises KeyError for an unknown name, ActorUnreachable when the child is stopped for good meanwhile.
        """
        spec = self._specs[name]
        self._pending.pop(name, None)
        ready = name in self._cells and self._cells[name].was_ready
        await self._stop(name, timeout if timeout is not None else spec.shutdown, drain)
        if self._specs.get(name) is not spec or not self.context.cell.alive:
            raise ActorUnreachable(f"{name} was stopped while it restarted")
        child = self._state.child(name)
        proven = child.proven or ready
        child = replace(child, fatal=False, restarts=child.restarts + 1, crashes=(), proven=proven)
        self._state = self._state.with_child(child)
        self._start(spec)
        return self._cells[name].ref

    def lives(self, name: str) -> bool:
        """Whether a child of this name runs, or is about to end."""
        return self.child(name) is not None

    def child(self, name: str) -> Cell | None:
        """The running incarnation of a child, None while it is down."""
        cell = self._cells.get(name)
        return cell if cell is not None and cell.state != "Stopped" else None

    def children(self) -> list[ChildStatistics]:
        """All children in start order."""
        return [self._child_statistics(child) for child in self._state.children]

    def inspection(self) -> dict[str, Any]:
        """Children and policy."""
        policy = self.policy
        return {
            "intensity": policy.intensity,
            "period": policy.period,
            "children": [msgspec.to_builtins(child) for child in self.children()],
        }

    @control
    async def _child_died(self, message: _ChildDied) -> None:
        name, cell = message.cell.ref.path.rsplit("/", 1)[1], message.cell
        if self._cells.get(name) is not cell or name in self._stopping or name not in self._specs:
            return  # we ended it ourselves, or a later incarnation lives
        if isinstance(message.reason, Crashed):
            self._last_error[name] = str(message.reason)
        event = Died(name, message.reason, self.context.now(), cell.was_ready)
        self._state, effect = decide(self.policy, self._state, event, self.context.random)
        if effect.action == "escalate":
            raise RestartLimit(
                f"{cell.ref.path} crashed more than {self.policy.intensity} times in {self.policy.period:g} s; "
                f"last: {message.reason}"
            )
        if effect.action == "remove":
            del self._specs[name]
        elif effect.action == "fatal":
            log.error("%s is Fatal and stays down: %s", cell.ref.path, message.reason)
        else:
            log.warning("%s ended (%s); restart in %.2f s", cell.ref.path, message.reason, effect.delay)
            self._pending[name] = cell
            self.context.task(self._restart_later(name, cell, effect.delay), "restart")

    async def _restart_later(self, name: str, dead: Cell, delay: float) -> None:
        await asyncio.sleep(delay)
        if self._pending.get(name) is dead and name in self._specs:
            del self._pending[name]
            self._start(self._specs[name])

    def _start(self, spec: Spec) -> None:
        system = self.context.system
        ref = system.next_incarnation(f"{self.context.ref.path.rstrip('/')}/{spec.name}")
        try:
            actor = spec.factory()
        except Exception as error:  # a factory that fails is a child that crashes at once
            actor = _FailedToStart(error)
        shutdown = None if isinstance(actor, Supervisor) else spec.shutdown  # bounded by its children's
        cell = Cell(system, ref, actor, self._on_death, shutdown)
        self._cells[spec.name] = cell
        if all(child.name != spec.name for child in self._state.children):
            self._state = self._state.with_child(Child(spec.name, spec.restart, spec.backoff))
        self._state = started(self._state, spec.name, self.context.now())
        system.live.register(cell)
        task = self.context.task(cell.run(), spec.name)
        task.set_name(ref.path)
        cell.adopt(task)

    def _on_death(self, cell: Cell, reason: Reason) -> None:
        self.context.system.live.unregister(cell)
        self.context.cell.mailbox.put_control(Envelope(_ChildDied(cell, reason)))

    async def _wait_ready(self, name: str) -> None:
        # A child that crashes while it starts is restarted by the mailbox loop, which does not run yet during our own
        # `started`; so a first start that fails is the supervisor's failure, as in OTP.
        cell = self._cells[name]
        await cell.ready.wait()
        if name in self._stopping or self._cells.get(name) is not cell:
            return  # it is ended or replaced on purpose
        if cell.state == "Stopped" and isinstance(cell.reason, Crashed) and self.context.cell.state == "Starting":
            raise cell.reason.error

    async def _stop(self, name: str, timeout: float, drain: bool) -> None:
        cell = self._cells.get(name)
        if cell is None or cell.task is None or cell.gone.is_set():
            return
        self._stopping.add(name)
        if cell.shutdown is not None and not drain:
            cell.shutdown = max(cell.shutdown, timeout)  # its end may take as long as we wait for it
        try:
            if cell.state == "Starting":
                cell.task.cancel()  # it reads no messages yet
            cell.mailbox.put_control(Drain() if drain else Stop())
            try:
                async with asyncio.timeout(timeout):
                    await cell.gone.wait()
            except TimeoutError:
                log.warning("%s did not stop within %g s and is killed", cell.ref.path, timeout)
                cell.task.cancel()
                try:
                    async with asyncio.timeout(timeout + 1):
                        await cell.gone.wait()
                except TimeoutError:
                    log.error("%s ignores its kill", cell.ref.path)
        finally:
            self._stopping.discard(name)

    def _child_statistics(self, child: Child) -> ChildStatistics:
        cell = self._cells.get(child.name)
        state: str = cell.state if cell is not None else "Stopped"
        if child.fatal:
            state = "Fatal"
        elif child.name in self._pending:
            state = "Restarting"
        return ChildStatistics(
            name=child.name,
            path=cell.ref.path if cell is not None else "",
            state=state,
            incarnation=(cell.ref.incarnation or 0) if cell is not None else 0,
            restarts=child.restarts,
            last_error=self._last_error.get(child.name, ""),
        )
