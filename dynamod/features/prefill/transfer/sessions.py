"""The source side: blocks of prompts that wait for their readers, as leases."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.observe.bounded import bounded
from dynamod.transport.base import Spawn

from .base import Kind, TransferError
from .frames import BLOCK_LIMIT, checksum

Ending = Literal["read", "expired", "released", "failed"]

READERS = 2
"""How often the blocks of a session may be asked for: one reader may break off."""

TICK = 0.01
"""Seconds between two looks at leases, at least."""

MOST_BYTES = 10**9
"""Bytes of blocks that a process holds for readers, where nothing else is said."""


class SessionStatistics(msgspec.Struct, frozen=True):
    """Sessions that are open, the bytes they hold, how sessions ended, and what was sent.

    `held_bytes`: with those of blocks that are being exported. `waiting`: sessions whose next block waits for room.
    `followed`: sessions that have a reader now.
    """

    open: Annotated[int, Meta(description="Open sessions: prompts whose blocks other workers may read.")]
    held_bytes: Annotated[int, Meta(description="Bytes that sessions hold, with blocks that are being exported.")]
    opened: Annotated[Total, Meta(description="Sessions that were opened.")]
    read: Annotated[Total, Meta(description="Sessions that ended because their blocks were read.")]
    expired: Annotated[Total, Meta(description="Sessions that ended without a reader in time.")]
    released: Annotated[Total, Meta(description="Sessions that ended because the reader did not need the blocks.")]
    failed: Annotated[Total, Meta(description="Sessions that failed.")]
    sent_blocks: Annotated[Total, Meta(description="Blocks that were sent.")]
    sent_bytes: Annotated[Total, Meta(description="Bytes of blocks that were sent.")]
    waiting: Annotated[int, Meta(description="Sessions whose next block waits for room.")] = 0
    followed: Annotated[int, Meta(description="Sessions that have a reader now.")] = 0


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

    def ask(self) -> None:
        """Others need room: find out which blocks the reader has, and call `Session.acknowledge`."""

    def over(self, kind: Kind, why: str) -> None:
        """The session has ended before it was read. Its blocks are gone."""


class Session:
    """The blocks of one prompt: put by the engine's side, taken by one reader at a time, and dropped after it.

    `first`: index of the first block that is here; `count`: of all that have been put.
    """

    def __init__(self, owner: "Sessions", on_end: Callable[[str], None]) -> None:
        self.id = secrets.token_urlsafe(16)
        self.first = 0
        self.finished = False  # all blocks have been put
        self._finished_at = 0.0
        self.ended = False
        self.held = 0  # bytes, with those for which there is room
        self._needed = 0  # index of the first block that a reader wants
        self._blocks: deque[Stored] = deque()
        self._room = 0  # bytes of blocks that are still to be put
        self.deadline = 0.0
        self._owner, self._on_end = owner, on_end
        self._follower: Follower | None = None
        self._readers = 0
        self.touch()

    @property
    def followed(self) -> bool:
        """Whether it has a reader now."""
        return self._follower is not None

    @property
    def count(self) -> int:
        """Blocks so far."""
        return self.first + len(self._blocks)

    @property
    def waited(self) -> float:
        """Seconds since all blocks have been put."""
        return self._owner.time() - self._finished_at if self.finished else 0.0

    @property
    def read(self) -> bool:
        """Whether a reader has it now."""
        return self._follower is not None

    def block(self, index: int) -> Stored:
        """One of the sessions that are here."""
        return self._blocks[index - self.first]

    # For who computes the prompt.

    def room(self, size: int, then: Callable[[], object]) -> bool:
        """Have room for a block of `size` bytes that is exported next and put then.

        False: there is none. Then `then` is called once when there is, and the room is the block's. It is not called
        when the session ends first, which it does by its lease if it has no reader. One call at a time.
        """
        return not (self.ended or self.finished) and self._owner.room(self, size, then)

    def grant(self, size: int) -> None:
        """There is room for a block, or one has come without being asked for."""
        self._room += size
        self.held += size
        self._owner.hold(size)

    def put(self, name: int, data: bytes) -> None:
        """Add the next block; ignored after the end. One above BLOCK_LIMIT ends the session as failed."""
        size = len(data)
        if self.ended or self.finished:
            return
        if size > BLOCK_LIMIT:
            self.fail(f"a block of {size} bytes is above the limit of {BLOCK_LIMIT}")
            return
        if size > self._room:
            self.grant(size - self._room)
        self._room -= size
        self._blocks.append(Stored(name, data, checksum(name, data)))
        self.touch()
        self.acknowledge(self._needed)
        if self._follower is not None:
            self._follower.more()
            self.ask()

    def finish(self) -> None:
        """Say that all blocks have been put: a reader that has all of them ends the session as read."""
        if not (self.ended or self.finished):
            self.finished, self._finished_at = True, self._owner.time()
            self.touch()
            if self._follower is not None:
                self._follower.more()

    def fail(self, why: str) -> None:
        """End the session: no more blocks come."""
        self.end("failed", "failed", why)

    def release(self) -> None:
        """End the session: no reader will come. Everything is dropped now.

        A reader that was sent all may not have said yet that it has it: that counts as read.
        """
        if self._follower is not None and self._follower.served:
            self.end("read")
        else:
            self.end("released", "gone", "the session was released")

    # For the connection of its reader.

    def attach(self, follower: Follower, first: int) -> None:
        """Make it the reader. Raises TransferError when there is one, or when `first` has been read and dropped."""
        if self._follower is not None:
            raise TransferError("gone", "the session has another reader")
        if first < self.first:
            raise TransferError("gone", f"blocks from {first} on have been read, and are not here any more")
        self._readers += 1
        self._follower, self._needed = follower, first
        self.touch()
        self.acknowledge(first)

    def detach(self) -> None:
        """The reader has broken off. Another one may come within the lease, once."""
        self._follower = None
        self.touch()
        if self._readers == READERS:
            self.fail("its readers have broken off")

    def acknowledge(self, taken: int) -> None:
        """The reader has taken the blocks before this index: they are dropped."""
        size = 0
        while self.first < taken and self._blocks:
            size += len(self._blocks.popleft().data)
            self.first += 1
        self.held -= size
        if size:
            self._owner.free(size)
            self.ask()

    def ask(self) -> None:
        """Where blocks wait for room: have the reader say what it has."""
        if self._owner.full and self._follower is not None and self._blocks:
            self._follower.ask()

    def touch(self) -> None:
        """Begin the lease anew."""
        self.deadline = self._owner.lease_end()

    def sent(self, block: Stored) -> None:
        """Count a block that has been sent."""
        self._owner.sent(len(block.data))

    def end(self, ending: Ending, kind: Kind = "gone", why: str = "") -> None:
        """Drop the blocks, tell the reader (with `kind` and `why`, unless it has all) and the opener of the session."""
        if self.ended:
            return
        self.ended = True
        follower, self._follower = self._follower, None
        self._owner.forget(self, ending)
        self._blocks.clear()
        self.held = self._room = 0
        if follower is not None and ending != "read":
            follower.over(kind, why)
        self._on_end(ending)


class _Waiting(NamedTuple):
    """A block for which there is no room."""

    session: Session
    size: int
    then: Callable[[], object]


class Sessions:
    """All sessions of a process. Everything is called on the event loop.

    A session that is neither read nor put to for `lease` seconds by `now` expires, `lease` as it is when one of these
    happens. `spawn` starts the task that sees to it. `layout`: digest of what must agree for the bytes to mean the
    same. `most_bytes`: of all blocks. Blocks beyond that wait until readers have taken others, or sessions have ended,
    those of sessions without a reader after the others; a larger one comes alone.
    """

    def __init__(
        self,
        now: Callable[[], float],
        spawn: Spawn,
        layout: str,
        *,
        lease: float = 30.0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._now, self._spawn, self._layout = now, spawn, layout
        self.lease, self._most_bytes = lease, most_bytes
        self._open: dict[str, Session] = {}
        self._ended: dict[Ending, int] = dict.fromkeys(("read", "expired", "released", "failed"), 0)
        self._held = self._opened = self._sent_blocks = self._sent_bytes = 0
        self._waiting: deque[_Waiting] = deque()  # in the order of their coming
        self._serves = False  # in this turn of the loop
        self._watch: Any = None  # the task that looks at the leases, while a session is open
        bounded(self, "KV blocks for hand-off", most_bytes, lambda one: one._held, "bytes")

    def open(self, on_end: Callable[[str], None] = lambda why: None) -> Session:
        """Begin a session. `on_end` is called once, with "read", "expired", "released" or "failed"."""
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
            sent_blocks=self._sent_blocks, sent_bytes=self._sent_bytes, waiting=len(self._waiting),
            followed=sum(session.followed for session in self._open.values()),
        )  # fmt: skip

    def close(self) -> None:
        """Release all sessions."""
        for session in list(self._open.values()):
            session.release()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # For sessions and connections.

    def attach(self, session: str, layout: str, follower: Follower, first: int = 0) -> Session:
        """Make `follower` the reader of a session, from a block on. Raises TransferError: gone or layout."""
        found = self._open.get(session)
        if found is None:
            raise TransferError("gone", "there is no such session (any more)")
        if layout != self._layout:
            raise TransferError("layout", f"the blocks have the layout {self._layout}, the reader has {layout}")
        found.attach(follower, first)
        return found

    def time(self) -> float:
        """Now, in seconds."""
        return self._now()

    def lease_end(self) -> float:
        """When a lease that begins now ends."""
        return self._now() + self.lease

    @property
    def full(self) -> bool:
        """Whether blocks wait for room."""
        return bool(self._waiting)

    def room(self, session: Session, size: int, then: Callable[[], object]) -> bool:
        """As `Session.room`."""
        first = self._first()
        if (first is None or (session.read and not first.session.read)) and self._fits(size):
            session.grant(size)
            return True
        self._waiting.append(_Waiting(session, size, then))
        for one in self._open.values():
            one.ask()
        return False

    def hold(self, size: int) -> None:
        """Count bytes that are held from now on."""
        self._held += size

    def free(self, size: int) -> None:
        """Count them no more: blocks that wait have their turn soon."""
        self._held -= size
        if self._waiting and not self._serves:
            self._serves = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._serves = False
        while (first := self._first()) is not None and self._fits(first.size):
            self._waiting.remove(first)
            first.session.grant(first.size)
            first.then()

    def _first(self) -> _Waiting | None:
        """Whose turn is next."""
        return next((one for one in self._waiting if one.session.read), self._waiting[0] if self._waiting else None)

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._most_bytes

    def sent(self, size: int) -> None:
        """Count a block that was sent."""
        self._sent_blocks += 1
        self._sent_bytes += size

    def forget(self, session: Session, ending: Ending) -> None:
        """Count a session that has ended, and its bytes no more."""
        self._open.pop(session.id, None)
        self._waiting = deque(one for one in self._waiting if one.session is not session)
        self.free(session.held)
        self._ended[ending] += 1

    async def _expire(self) -> None:
        while self._open:
            soonest = min(session.deadline for session in self._open.values())
            await asyncio.sleep(max(soonest - self._now(), TICK))
            now = self._now()
            for session in [session for session in self._open.values() if session.deadline <= now]:
                session.end("expired", "gone", "the session has expired")
        self._watch = None
