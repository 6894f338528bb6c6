"""The source side: blocks of prompts that wait for their readers, as leases."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from dynamod.actor import Total
from dynamod.message.errors import Overloaded
from dynamod.transport.base import Spawn

from .base import Kind, TransferError
from .frames import BLOCK_LIMIT, checksum

Ending = Literal["read", "expired", "released", "failed"]

READERS = 2
"""How often the blocks of a session may be asked for: one reader may break off."""

TICK = 0.01
"""Seconds between two looks at leases, at least."""


class SessionStatistics(msgspec.Struct, frozen=True):
    """Sessions that are open, the bytes they hold, how sessions ended, and what was sent."""

    open: int
    held_bytes: int
    opened: Total
    read: Total
    expired: Total
    released: Total
    failed: Total
    sent_blocks: Total
    sent_bytes: Total


class Stored(NamedTuple):
    """A block that waits for its reader."""

    name: int
    data: bytes
    checksum: int


class Follower(Protocol):
    """A reader of a session, as the session sees it. `served`: all blocks have been sent to it."""

    served: bool

    def more(self) -> None:
        """Blocks were put, or all have been."""

    def over(self, kind: Kind, why: str) -> None:
        """The session has ended before it was read. Its blocks are gone."""


class Session:
    """The blocks of one prompt: put by the engine's side, taken by one reader at a time."""

    def __init__(self, owner: "Sessions", on_end: Callable[[str], None]) -> None:
        self.id = secrets.token_urlsafe(16)
        self.blocks: list[Stored] = []
        self.finished = False  # all blocks have been put
        self.ended = False
        self.held = 0  # bytes
        self.deadline = 0.0
        self._owner, self._on_end = owner, on_end
        self._follower: Follower | None = None
        self._readers = 0
        self.touch()

    # For who computes the prompt.

    def put(self, name: int, data: bytes) -> None:
        """Add the next block; ignored after the end. Where it does not fit, the session ends as failed."""
        if self.ended or self.finished:
            return
        if not self._owner.hold(len(data)):
            self.fail("the source holds as many bytes as it may")
            return
        self.blocks.append(Stored(name, data, checksum(name, data)))
        self.held += len(data)
        self.touch()
        if self._follower is not None:
            self._follower.more()

    def finish(self) -> None:
        """Say that all blocks have been put: a reader that has all of them ends the session as read."""
        if not (self.ended or self.finished):
            self.finished = True
            self.touch()
            if self._follower is not None:
                self._follower.more()

    def fail(self, why: str) -> None:
        """End the session: no more blocks come."""
        self.end("failed", "failed", why)

    def release(self) -> None:
        """End the session: nobody will read. Everything is dropped now.

        A reader that was sent all may not have said yet that it has it: that counts as read.
        """
        if self._follower is not None and self._follower.served:
            self.end("read")
        else:
            self.end("released", "gone", "the session was released")

    # For the connection of its reader.

    def attach(self, follower: Follower) -> None:
        """Make it the reader. Raises TransferError when there is one, or when it was asked for too often."""
        if self._follower is not None:
            raise TransferError("gone", "the session has another reader")
        self._readers += 1
        self._follower = follower
        self.touch()

    def detach(self) -> None:
        """The reader has broken off. Another one may come within the lease, once."""
        self._follower = None
        self.touch()
        if self._readers == READERS:
            self.fail("its readers have broken off")

    def touch(self) -> None:
        """Begin the lease anew."""
        self.deadline = self._owner.lease_end()

    def sent(self, block: Stored) -> None:
        """Count a block that has been sent."""
        self._owner.sent(len(block.data))

    def end(self, ending: Ending, kind: Kind = "gone", why: str = "") -> None:
        """Drop the blocks, tell the reader (with `kind` and `why`, unless it has all) and who opened the session."""
        if self.ended:
            return
        self.ended = True
        follower, self._follower = self._follower, None
        self._owner.forget(self, ending)
        self.blocks.clear()
        self.held = 0
        if follower is not None and ending != "read":
            follower.over(kind, why)
        self._on_end(ending)


class Sessions:
    """All sessions of a process. Everything is called on the event loop.

    A session that is neither read nor put to for `lease` seconds by `now` expires, `lease` as it is when one of these
    happens. `spawn` starts the task that sees to it. `layout`: digest of what must agree for the bytes to mean the
    same. `most_bytes`: of all blocks.
    """

    def __init__(
        self,
        now: Callable[[], float],
        spawn: Spawn,
        layout: str,
        *,
        lease: float = 30.0,
        most_bytes: int = 1 << 30,
    ) -> None:
        self._now, self._spawn, self._layout = now, spawn, layout
        self.lease, self._most_bytes = lease, most_bytes
        self._open: dict[str, Session] = {}
        self._ended: dict[Ending, int] = dict.fromkeys(("read", "expired", "released", "failed"), 0)
        self._held = self._opened = self._sent_blocks = self._sent_bytes = 0
        self._watch: Any = None  # the task that looks at the leases, while a session is open

    def open(self, on_end: Callable[[str], None] = lambda why: None) -> Session:
        """Begin a session. `on_end` is called once, with "read", "expired", "released" or "failed".

        Raises Overloaded when the process holds as many bytes of blocks as it may.
        """
        if self._held >= self._most_bytes:
            raise Overloaded(f"the blocks of {len(self._open)} prompts wait for their readers already")
        session = Session(self, on_end)
        self._open[session.id] = session
        self._opened += 1
        if self._watch is None:
            self._watch = self._spawn(self._expire(), "leases of prompts")
        return session

    def statistics(self) -> SessionStatistics:
        """A snapshot."""
        return SessionStatistics(
            len(self._open), self._held, self._opened, **self._ended,
            sent_blocks=self._sent_blocks, sent_bytes=self._sent_bytes,
        )  # fmt: skip

    def close(self) -> None:
        """Release all sessions."""
        for session in list(self._open.values()):
            session.release()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # For sessions and connections.

    def attach(self, session: str, layout: str, follower: Follower) -> Session:
        """Make `follower` the reader of a session. Raises TransferError: gone or layout."""
        found = self._open.get(session)
        if found is None:
            raise TransferError("gone", "there is no such session (any more)")
        if layout != self._layout:
            raise TransferError("layout", f"the blocks have the layout {self._layout}, the reader has {layout}")
        found.attach(follower)
        return found

    def lease_end(self) -> float:
        """When a lease that begins now ends."""
        return self._now() + self.lease

    def hold(self, size: int) -> bool:
        """Count a block of `size` bytes that is held from now on; False: it does not fit."""
        fits = size <= BLOCK_LIMIT and self._held + size <= self._most_bytes
        self._held += size if fits else 0
        return fits

    def sent(self, size: int) -> None:
        """Count a block that was sent."""
        self._sent_blocks += 1
        self._sent_bytes += size

    def forget(self, session: Session, ending: Ending) -> None:
        """Count a session that has ended, and its bytes no more."""
        self._held -= session.held
        self._open.pop(session.id, None)
        self._ended[ending] += 1

    async def _expire(self) -> None:
        while self._open:
            soonest = min(session.deadline for session in self._open.values())
            await asyncio.sleep(max(soonest - self._now(), TICK))
            now = self._now()
            for session in [session for session in self._open.values() if session.deadline <= now]:
                session.end("expired", "gone", "the session has expired")
        self._watch = None
