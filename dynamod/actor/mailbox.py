"""The mailbox: a bounded lane for messages and an unbounded small lane for control, which is read first."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from .errors import ActorUnreachable, MailboxFull
from .statistics import MailboxStatistics

T = TypeVar("T")
C = TypeVar("C")


class Mailbox(Generic[T, C]):
    """Two lanes with one reader.

    `put` waits while the message lane is full and is safe to cancel: a cancelled sender leaves no message.
    `put_control` never waits: control (stop, drain, inspect, death notices) must pass a full mailbox.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._messages: deque[T] = deque()
        self._control: deque[C] = deque()
        self._senders: deque[asyncio.Future[None]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        self._taken = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is left to read in either lane."""
        return not self._messages and not self._control

    def __len__(self) -> int:
        return len(self._messages)

    async def put(self, item: T) -> None:
        """Append a message, waiting for room in order of arrival. Raises ActorUnreachable when the mailbox closes."""
        while not self._closed and (len(self._messages) >= self.capacity or self._senders):
            turn = asyncio.get_running_loop().create_future()
            self._senders.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake_sender()  # our turn goes to the next
                else:
                    self._senders.remove(turn)
                raise
            if len(self._messages) < self.capacity:
                break
        self._append(item)

    def put_nowait(self, item: T) -> None:
        """Append a message or raise MailboxFull; never overtakes a sender that waits."""
        if len(self._messages) >= self.capacity or self._senders:
            raise MailboxFull(f"mailbox holds {len(self._messages)} of {self.capacity}")
        self._append(item)

    def put_control(self, item: C) -> None:
        """Append control. After close it is dropped: there is no reader left."""
        if not self._closed:
            self._control.append(item)
            self._wake_reader()

    async def get(self) -> tuple[T | None, C | None]:
        """Take the next item, control first; exactly one of the two is not None."""
        while True:
            if self._control:
                return None, self._control.popleft()
            if self._messages:
                item = self._messages.popleft()
                self._taken += 1
                self._wake_sender()
                return item, None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def close(self) -> list[T]:
        """Refuse further messages, wake all waiting senders, and return the messages that will not be read."""
        self._closed = True
        left = list(self._messages)
        self._messages.clear()
        self._control.clear()
        while self._senders:
            sender = self._senders.popleft()
            if not sender.done():
                sender.set_result(None)
        return left

    def statistics(self) -> MailboxStatistics:
        """A snapshot of the mailbox."""
        return MailboxStatistics(
            len(self._messages), len(self._control), self.capacity, len(self._senders), self._taken
        )

    def _append(self, item: T) -> None:
        if self._closed:
            raise ActorUnreachable("the mailbox is closed")
        self._messages.append(item)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_sender(self) -> None:
        while self._senders and len(self._messages) < self.capacity:
            sender = self._senders.popleft()
            if not sender.done():
                sender.set_result(None)
                return
