"""The cell: one incarnation of an actor while it runs. Mailbox, task, helper tasks, state, and its one end."""

import asyncio
import contextvars
import logging
import random as random_module
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec

from .actor import Actor
from .envelope import Envelope, asking, deadline_now
from .errors import ActorUnreachable, Crashed, DeadlineExceeded, MailboxFull, Normal, Reason, WrongMessage
from .mailbox import Mailbox
from .statistics import ActorState, ActorStatistics

if TYPE_CHECKING:
    from .ref import Ref
    from .system import System

log = logging.getLogger("dynamod.actor")

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Stop:
    """Control: end normally after the current message."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Control: take no more messages, finish the messages in the mailbox, then end normally."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """Control, sent to watchers exactly once for each watched incarnation."""

    ref: "Ref"
    reason: Reason


@dataclass(slots=True, eq=False)
class Context:
    """What an actor may use: its own reference, the system, and helper tasks."""

    ref: "Ref"
    system: "System"
    cell: "Cell" = field(repr=False)

    @property
    def random(self) -> random_module.Random:
        """The system's source of randomness."""
        return self.system.random

    def now(self) -> float:
        """Monotonic seconds of the system's clock."""
        return self.system.now()

    def task(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run `work` alongside the mailbox as long as the actor lives; its exception crashes the actor."""
        return self.cell.spawn(work, name)

    def child(self, name: str, actor: Actor) -> "Ref":
        """Start an actor that shares this one's life: it ends when this one ends, and its crash is this one's crash."""
        return self.cell.start_child(name, actor)

    def watch(self, ref: "Ref") -> None:
        """Have `Terminated` delivered to this actor when the incarnation of `ref` ends (at once if it has)."""
        self.system.watch(ref, lambda notice: self.cell.mailbox.put_control(Envelope(notice)))

    def callback(self, function: Callable[P, None]) -> Callable[P, None]:
        """Return `function` as others may call it at any time: a call does nothing where the actor does not run."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.cell.alive:
                function(*args, **kwargs)

        return call

    def stop(self) -> None:
        """End this actor normally after the current message."""
        self.cell.mailbox.put_control(Stop())


class Helpers:
    """The tasks of one actor alongside the task that handles its messages.

    `group`: the task group of the actor while it runs. `failed(error)`: called when a helper raises.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.group: asyncio.TaskGroup | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self._failed = failed

    def start(self, work: Coroutine[Any, Any, Any], label: str, context: contextvars.Context) -> asyncio.Task[Any]:
        """Start a helper task. The group must run."""
        assert self.group is not None
        task = self.group.create_task(self._help(work), name=label, context=context)
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            work.close()  # a task that is cancelled before its first step has never awaited it

        task.add_done_callback(ended)
        return task

    async def _help(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except Exception as error:
            self._failed(error)
            return None

    def cancel(self) -> None:
        """Cancel all helpers."""
        for task in self.tasks:
            task.cancel()


class Cell:
    """Runs one incarnation. `run` never raises: however the actor ends, `died` is called exactly once."""

    def __init__(
        self, system: "System", ref: "Ref", actor: Actor, died: Callable[["Cell", Reason], None], shutdown: float | None
    ) -> None:
        self.system = system
        self.ref = ref
        self.actor = actor
        self.state: ActorState = "Starting"
        self.mailbox: Mailbox[Envelope, Envelope | Stop | Drain] = Mailbox(actor.mailbox_capacity)
        self.reason: Reason | None = None
        self.ready = asyncio.Event()  # set when Ready, and when dead, so that no waiter waits without end
        self.was_ready = False
        self.gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._died = died
        self.shutdown = shutdown
        self._watchers: list[Callable[[Terminated], None]] = []
        self.helpers = Helpers(self._crash)
        self.deferred: set[asyncio.Future[Any]] = set()
        self._helper_error: BaseException | None = None
        self._current: Envelope | None = None
        self._current_since = 0.0
        self._created = system.now()
        self._handled = self._abandoned = 0
        actor.context = Context(ref, system, self)

    # Sending, called by references.

    def check(self, message: Any) -> bool:
        """Whether the message goes to the control lane. Raises WrongMessage for a type the actor does not take."""
        kind = type(message)
        if kind not in self.actor.receivers:
            known = ", ".join(sorted(k.__name__ for k in self.actor.receivers)) or "none"
            raise WrongMessage(f"{self.ref.path} does not take {kind.__name__}; it takes: {known}")
        return kind in self.actor.control_types

    async def put(self, envelope: Envelope) -> None:
        """Deliver, waiting for room in the mailbox. Raises ActorUnreachable when the actor is draining or dead."""
        if self.check(envelope.message):
            self._refuse("Stopped")
            self.mailbox.put_control(envelope)
            return
        self._refuse("Stopped", "Draining")
        await self.mailbox.put(envelope)

    def put_nowait(self, envelope: Envelope) -> None:
        """Deliver or raise MailboxFull."""
        if self.check(envelope.message):
            self._refuse("Stopped")
            self.mailbox.put_control(envelope)
            return
        self._refuse("Stopped", "Draining")
        try:
            self.mailbox.put_nowait(envelope)
        except MailboxFull as error:
            raise MailboxFull(f"{self.ref.path}: {error}") from None

    def _refuse(self, *states: ActorState) -> None:
        if self.state in states:
            how = f"has ended ({self.reason})" if self.state == "Stopped" else "is draining"
            raise ActorUnreachable(f"{self.ref.path} {how}")

    # Life.

    async def run(self) -> None:
        """Live from start to death. Cancelling the task that runs this is the kill: it still ends by `_announce`."""
        reason: Reason = Normal()
        try:
            async with asyncio.TaskGroup() as self.helpers.group:
                try:
                    await self._live()
                except asyncio.CancelledError:
                    _uncancel()
                    reason = Crashed(self._helper_error or asyncio.CancelledError("killed"))
                except Exception as error:  # the actor's own: everything it raises is a crash with that reason
                    reason = Crashed(error)
                await self._close(reason)
        except asyncio.CancelledError:  # killed once more while helpers were ending; the group has waited for them
            _uncancel()
        self._announce(reason)

    async def _live(self) -> None:
        await self.actor.started()
        self.state, self.was_ready = "Ready", True
        self.ready.set()
        draining = False
        while True:
            if draining and not len(self.mailbox):
                await self.actor.drained()
                return
            message, control = await self.mailbox.get()
            if isinstance(control, Stop):
                return
            if isinstance(control, Drain):
                self.state, draining = "Draining", True
            else:
                envelope = message or control
                assert envelope is not None
                if type(envelope.message) in self.actor.receivers:  # a death notice may have no receiver
                    await self._handle(envelope)

    async def _handle(self, envelope: Envelope) -> None:
        now = self.system.now()
        if envelope.abandoned or (envelope.deadline is not None and envelope.deadline <= now):
            self._abandoned += 1
            return
        receiver = self.actor.receivers[type(envelope.message)]
        self._current, self._current_since = envelope, now
        asking.set((*envelope.chain, self.ref.path))
        deadline_now.set(envelope.deadline)
        scope: asyncio.Timeout | None = None
        try:
            if type(envelope.message) in self.actor.immediate:
                envelope.returned(receiver(self.actor, envelope.message), self.deferred)
            elif envelope.reply is None:
                await receiver(self.actor, envelope.message)
            else:
                async with asyncio.timeout(None) as scope:  # the asker's own clock abandons the envelope
                    envelope.scope = scope
                    value = await receiver(self.actor, envelope.message)
                envelope.returned(value, self.deferred)
        except TimeoutError:
            if scope is None or not scope.expired():
                raise
            self._abandoned += 1  # the asker left or its deadline passed; the handler was interrupted for it
            envelope.answer(DeadlineExceeded(f"{self.ref.path} did not answer in time"))
        except BaseException as error:
            envelope.answer(ActorUnreachable(f"{self.ref.path} crashed: {Crashed(error)}"))
            raise
        finally:
            envelope.scope = None
            self._current = None
            self._handled += 1

    @property
    def idle(self) -> bool:
        """Whether the actor is ready, handles no message, and has none to read."""
        return self.state == "Ready" and self._current is None and self._helper_error is None and self.mailbox.empty

    def handle_now(self, message: Any) -> Any:
        """Handle a message of an `immediate` type in the caller's turn, and return the reply. The actor must be `idle`.

        An exception crashes the actor. Raises ActorUnreachable then.
        """
        self._handled += 1
        try:
            return self.actor.receivers[type(message)](self.actor, message)
        except Exception as error:
            self._crash(error)
            raise ActorUnreachable(f"{self.ref.path} crashed: {Crashed(error)}") from None

    async def _close(self, reason: Reason) -> None:
        """Refuse messages, run `stopping` within its bound, then end the helpers."""
        self.state = "Stopped"
        self.reason = reason
        for envelope in self.mailbox.close():
            self.system.undelivered(self.ref, envelope.message, "the actor ended")
            envelope.answer(ActorUnreachable(f"{self.ref.path} ended ({reason}) before it read the message"))
        for later in self.deferred:
            if not later.done():
                later.set_exception(ActorUnreachable(f"{self.ref.path} ended ({reason}) before it replied"))
        try:
            async with asyncio.timeout(self.shutdown):
                await self.actor.stopping(reason)
        except asyncio.CancelledError:
            _uncancel()
            log.warning("stopping %s was cut short by its kill", self.ref.path)
        except Exception as error:
            log.warning("stopping %s failed: %s", self.ref.path, Crashed(error))
        self.helpers.cancel()

    def _announce(self, reason: Reason) -> None:
        """The only function that reports a death: to watchers and the supervisor, once."""
        self.state, self.reason = "Stopped", reason
        self.ready.set()
        self.gone.set()
        notice = Terminated(self.ref, reason)
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(notice)
        self._died(self, reason)

    def adopt(self, task: asyncio.Task[None]) -> None:
        """Take the task that runs `run`. One that is cancelled before its first step is announced here."""
        self.task = task

        def ended(_: asyncio.Task[None]) -> None:
            if not self.gone.is_set():
                self.mailbox.close()
                self._announce(Crashed(asyncio.CancelledError("killed before it started")))

        task.add_done_callback(ended)

    def watch(self, watcher: Callable[[Terminated], None]) -> None:
        """Call `watcher` once when this incarnation is dead."""
        if self.gone.is_set():
            watcher(Terminated(self.ref, self.reason or Normal()))
        else:
            self._watchers.append(watcher)

    @property
    def alive(self) -> bool:
        """Whether the actor runs and may still start helpers."""
        return self.helpers.group is not None and self.state != "Stopped"

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a helper task of this actor. Raises ActorUnreachable when the actor is not running."""
        if not self.alive:
            work.close()
            raise ActorUnreachable(f"{self.ref.path} is not running")
        context = contextvars.copy_context()
        if asking.get():  # a helper does not hold up the mailbox, so it cannot be part of a cycle
            context.run(asking.set, ())
        if deadline_now.get() is not None:
            context.run(deadline_now.set, None)
        label = f"{self.ref.path}:{name or getattr(work, '__name__', 'task')}"
        return self.helpers.start(work, label, context)

    def start_child(self, name: str, actor: Actor) -> "Ref":
        """Start an actor in the task group of this one. When it crashes, this one crashes."""
        ref = self.system.next_incarnation(f"{self.ref.path}/{name}")
        cell = Cell(self.system, ref, actor, self._child_died, self.shutdown)
        self.system.live.register(cell)
        cell.adopt(self.spawn(cell.run(), name))
        return ref

    def _child_died(self, cell: "Cell", reason: Reason) -> None:
        self.system.live.unregister(cell)
        if isinstance(reason, Crashed):
            self._crash(reason.error)

    def _crash(self, error: BaseException) -> None:
        """Something that shares this actor's life has failed."""
        if self._helper_error is None and self.state != "Stopped":
            self._helper_error = error
            assert self.task is not None
            self.task.cancel()  # the crash must not wait for the end of a long message

    # Looking inside.

    def statistics(self) -> ActorStatistics:
        """A snapshot of this actor."""
        now = self.system.now()
        current = self._current
        return ActorStatistics(
            path=self.ref.path,
            incarnation=self.ref.incarnation or 0,
            kind=type(self.actor).__name__,
            state=self.state,
            mailbox=self.mailbox.statistics(),
            handled=self._handled,
            abandoned=self._abandoned,
            current=type(current.message).__name__ if current else None,
            current_age=now - self._current_since if current else None,
            tasks=len(self.helpers.tasks),
            age=now - self._created,
        )


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
