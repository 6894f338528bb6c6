"""The system: the root of a process's actors, and what is injected into all of them (clock, randomness)."""

import asyncio
import logging
import random as random_module
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .actor import Actor
from .cell import Cell, Stop, Terminated
from .errors import ActorUnreachable, Crashed, Reason, Unreachable
from .live import LiveCells
from .ref import Ref
from .restart import Backoff, Policy, Restart
from .statistics import SystemStatistics
from .supervisor import Spec, Supervisor

log = logging.getLogger("dynamod.actor")


class System:
    """`async with System() as system:` starts the root supervisor and, at the end, stops the whole tree.

    The clock is the running loop's; tests run under a loop with virtual time (`dynamod.actor.testing`). `random` is
    the only source of randomness of everything below.
    """

    def __init__(self, *, seed: int | None = None, policy: Policy = Policy()) -> None:
        self.random = random_module.Random(seed)
        self.full = 0  # sends refused because a mailbox was full
        self._policy = policy
        self.live = LiveCells()
        self._incarnations: Counter[str] = Counter()
        self._undelivered: Counter[str] = Counter()
        self._group: asyncio.TaskGroup | None = None
        self._root: Cell | None = None
        self.failure: Reason | None = None  # why the root ended, unless it was stopped

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        ref = self.next_incarnation("")
        self._root = Cell(self, ref, Supervisor(policy=self._policy), self._root_died, None)
        self.live.register(self._root)
        self._root.adopt(self._group.create_task(self._root.run(), name="root"))
        await self._root.ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        assert self._root is not None
        self._root.mailbox.put_control(Stop())
        try:
            await self._root.gone.wait()
        finally:
            await self._group.__aexit__(None, None, None)  # an error of the body stays as it is

    def now(self) -> float:
        """Monotonic seconds."""
        return self.loop.time()

    @property
    def root(self) -> Supervisor:
        """The root supervisor."""
        assert self._root is not None
        actor = self._root.actor
        assert isinstance(actor, Supervisor)
        return actor

    def start(
        self,
        name: str,
        factory: Callable[[], Actor],
        *,
        under: Supervisor | None = None,
        restart: Restart = "permanent",
        backoff: Backoff = Backoff(),
        shutdown: float = 5.0,
    ) -> Ref:
        """Start an actor below `under` (default: the root). Returns at once; use `ready` to wait."""
        supervisor = under if under is not None else self.root
        return supervisor.start_child(Spec(name, factory, restart, backoff, shutdown))

    async def supervisor(self, name: str, policy: Policy = Policy(), *, timeout: float = 5.0) -> Supervisor:
        """Start a supervisor below the root and wait until it can be given children. Raises as `ready`."""
        supervisor = Supervisor((), policy)
        await self.ready(self.start(name, lambda: supervisor, restart="temporary"), timeout=timeout)
        return supervisor

    def supervisor_of(self, ref: Ref) -> Supervisor | None:
        """The supervisor of `ref`, None while it does not run."""
        cell = self.cell(ref)
        return cell.actor if cell is not None and cell.alive and isinstance(cell.actor, Supervisor) else None

    async def ready(self, ref: Ref, *, timeout: float) -> None:
        """Wait until the actor is Ready. Raises ActorUnreachable when it is dead, TimeoutError after `timeout`."""
        cell = self.cell(ref)
        if cell is None:
            raise ActorUnreachable(f"no actor at {ref.path}")
        async with asyncio.timeout(timeout):
            await cell.ready.wait()
        if cell.state == "Stopped":
            raise ActorUnreachable(f"{ref.path} ended while it started: {cell.reason}")

    async def came_up(self, ref: Ref) -> bool:
        """Wait until the actor is Ready, however long it takes; False when it has ended instead."""
        cell = self.cell(ref)
        if cell is None:
            return False
        await cell.ready.wait()
        return cell.state != "Stopped"

    async def ended(self, ref: Ref) -> Reason:
        """Wait until the incarnation of `ref` has ended."""
        done: asyncio.Future[Reason] = self.loop.create_future()

        def resolve(notice: Terminated) -> None:
            if not done.done():
                done.set_result(notice.reason)

        self.watch(ref, resolve)
        return await done

    def reason_of(self, ref: Ref) -> Reason | None:
        """Why the incarnation of `ref` ended, if it was among the last to end."""
        return self.live.reasons.get((ref.path, ref.incarnation))

    def ref(self, path: str) -> Ref:
        """A reference to whichever actor has `path`, now or later."""
        return Ref(path, None, self)

    def watch(self, ref: Ref, watcher: Callable[[Terminated], None]) -> None:
        """Call `watcher` exactly once when the incarnation of `ref` ends; at once when it is not there."""
        cell = self.cell(ref)
        if cell is None:
            watcher(Terminated(ref, Unreachable("not running")))
        else:
            cell.watch(watcher)

    # Used by the kernel.

    def cell(self, ref: Ref) -> Cell | None:
        """The live cell that `ref` means."""
        cell = self.live.cells.get(ref.path)
        if cell is None or (ref.incarnation is not None and cell.ref.incarnation != ref.incarnation):
            return None
        return cell

    def next_incarnation(self, path: str) -> Ref:
        """The reference of a new incarnation at `path`."""
        self._incarnations[path] += 1
        return Ref(path, self._incarnations[path], self)

    def undelivered(self, ref: Ref, message: Any, why: str) -> None:
        """Count a message that no actor reads, by its type.

        Its method `undeliverable(why)`, if it has one, is called, so that a waiter for its effect is informed.
        """
        self._undelivered[type(message).__name__] += 1
        inform = getattr(message, "undeliverable", None)
        if inform is not None:
            inform(f"{ref.path}: {why}")

    def statistics(self) -> SystemStatistics:
        """A snapshot of the whole system."""
        return SystemStatistics(len(self.live.cells), dict(self._undelivered), self.full)

    def cells(self) -> list[Cell]:
        """All live actors, by path."""
        return [self.live.cells[path] for path in sorted(self.live.cells)]

    def _root_died(self, cell: Cell, reason: Reason) -> None:
        self.live.unregister(cell)
        if isinstance(reason, Crashed):
            self.failure = reason
            log.error("the root supervisor gave up: %s", reason)
