"""References: how actors and others address an actor."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .envelope import Envelope, asking, deadline_now
from .errors import ActorUnreachable, AskCycle, MailboxFull

if TYPE_CHECKING:
    from .cell import Cell
    from .system import System


@dataclass(frozen=True, slots=True)
class Ref:
    """The address of an actor: its path, and the incarnation it means.

    With an incarnation, messages to a later one are dropped and counted (its state is not what the sender knew).
    Without (`current`), the actor that has the path now gets them.
    """

    path: str
    incarnation: int | None
    system: "System" = field(compare=False, repr=False)

    @property
    def current(self) -> "Ref":
        """The same path, whichever incarnation has it."""
        return replace(self, incarnation=None)

    def send_nowait(self, message: Any) -> None:
        """Deliver without waiting. Raises MailboxFull, or WrongMessage for a wrong type."""
        cell = self._cell(message)
        if cell is None:
            return
        try:
            cell.put_nowait(Envelope(message))
        except ActorUnreachable as error:
            self.system.undelivered(self, message, str(error))
        except MailboxFull:
            self.system.full += 1
            raise

    async def ask(self, message: Any, *, timeout: float) -> Any:
        """Deliver and wait for the reply, both within `timeout` seconds (and within the caller's own deadline).

        Raises DeadlineExceeded (the receiver is interrupted; so too when the caller is cancelled),
        AskCycle, WrongMessage, ActorUnreachable, or the exception that the receiver returned as its reply.
        """
        chain = asking.get()
        if self.path in chain:
            raise AskCycle(f"{' -> '.join((*chain, self.path))} would wait for itself")
        loop = self.system.loop  # which runs; to ask asyncio costs a system call
        deadline = loop.time() + timeout
        inherited = deadline_now.get()
        if inherited is not None:
            deadline = min(deadline, inherited)
        cell = self.system.cell(self)
        if cell is None:
            raise ActorUnreachable(f"no actor at {self.path}")
        later: asyncio.Future[Any] | None = None
        if type(message) in cell.actor.immediate and cell.idle:
            value = cell.handle_now(message)
            if not isinstance(value, asyncio.Future):
                if isinstance(value, BaseException):
                    raise value
                return value
            later = value
        reply: asyncio.Future[Any] = loop.create_future()
        envelope = Envelope(message, reply, deadline, chain)
        timer = loop.call_at(deadline, envelope.expire, self.path)
        try:
            if later is not None:
                envelope.returned(later, cell.deferred)
                return await reply
            try:
                cell.put_nowait(envelope)
            except MailboxFull:
                with suppress(TimeoutError):  # the timer says so, too
                    async with asyncio.timeout_at(deadline):
                        await cell.put(envelope)
            return await reply
        except asyncio.CancelledError:
            envelope.abandon()
            raise
        finally:
            timer.cancel()

    def _cell(self, message: Any) -> "Cell | None":
        cell = self.system.cell(self)
        if cell is None:
            self.system.undelivered(self, message, "no actor there")
        return cell
