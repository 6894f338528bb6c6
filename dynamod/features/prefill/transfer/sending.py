"""The source's end of a connection: sends the blocks of one session as they are put, while the reader has room."""

from dynamod.transport.signing import BLOCKS, NotTrusted, Signing

from .base import Kind, TransferError
from .frames import (
    FRAME_LIMIT,
    PIECE,
    VERSION,
    WHY_LIMIT,
    WINDOW,
    Accept,
    Credit,
    Done,
    End,
    Failed,
    Frame,
    FrameError,
    Head,
    Hello,
    Idle,
    Piece,
    pack,
)
from .link import Link
from .sessions import Session, Sessions, Stored

PATIENCE = 5
"""Seconds in which a reader must name its session, and in which what is sent last must leave."""

JOINED = 32 * 1024
"""Bytes up to which a piece is copied after its frame, to leave in one packet."""

_BUFFER = 2 * FRAME_LIMIT
"""A reader says little."""
MOST_CONNECTIONS = 1024
"""Connections of all readers at a time: each takes a descriptor of the worker."""
MOST_PER_PEER = 512
"""Connections from one address at a time."""
MOST_UNKNOWN_PER_PEER = 64
"""Connections from one address that have named no session yet."""


class Ends(set["SourceEnd"]):
    """The connections that are there. `refused`: how many were ended at once since the last look.

    `signing`: judges the signatures of readers.
    """

    def __init__(self, signing: Signing | None = None) -> None:
        super().__init__()
        self.refused = 0
        self._signing = signing or Signing()

    def require_signed(self, hello: Hello) -> None:
        """Raises TransferError for a reader that is not to be trusted."""
        signer = self._signing.signer
        if signer is None:
            return
        try:
            signer.check(BLOCKS, hello.signature, *hello.content())
        except NotTrusted as error:
            raise TransferError("failed", f"the source does not trust the reader: {error}") from None

    def admits(self, peer: str) -> bool:
        """Whether one more connection from this address may stay."""
        same = [end for end in self if end.peer == peer]
        unknown = sum(end.unknown for end in same)
        return len(self) < MOST_CONNECTIONS and len(same) < MOST_PER_PEER and unknown < MOST_UNKNOWN_PER_PEER


class SourceEnd(Link):
    """A follower of a session. `ends`: where it is listed while the connection is there, for `beat`."""

    def __init__(self, sessions: Sessions, ends: Ends) -> None:
        super().__init__(_BUFFER)
        self._sessions, self._ends = sessions, ends
        self.peer = ""  # the address of the reader; empty on a unix socket, which only this user reaches
        self.unknown = True  # it has named no session
        self._session: Session | None = None
        self._next = 0  # index of the block that is sent, or of the first that is not there yet
        self._block: Stored | None = None  # that is sent now
        self._offset = 0  # bytes of it that are sent
        self._credit = WINDOW
        self._paused = self.served = False  # served: everything has been sent
        self._age = 0  # beats without a session
        self._asking = False  # what the reader has taken: it has not answered

    # For subclasses: where the bytes of a piece go.

    def room(self) -> int:
        """Bytes that the next piece may have, at most."""
        return PIECE

    def prepared(self) -> bool:
        """Whether this end can send, before the session is looked up; False: the reader takes the next backend."""
        return True

    def attached(self) -> None:
        """The session has let the reader in, which is not told so yet."""

    def carry(self, frame: bytes, data: memoryview) -> None:
        """Send the frame of a piece, and its bytes."""
        if self.transport is None:
            return
        if len(data) <= JOINED:
            self.transport.write(b"".join((frame, data)))
        else:
            self.transport.write(frame)
            self.transport.write(data)

    # Called each second by the server.

    def beat(self) -> None:
        """Show the reader that the source lives, and have it answer; end connections that lead to nothing."""
        if self._session is None:
            self._age += 1
            if self._age > PATIENCE:
                self.abort()
        elif not self.served:
            self.send(Idle())

    # Called by the session.

    def more(self) -> None:
        """Send what can be sent now: the blocks that have come, until the credit is used up or the socket is full."""
        session = self._session
        while session is not None and not self._paused and not self.served:
            if self._block is not None:
                if not self._piece(self._block, session):
                    return
            elif self._next < session.count:
                self._begin(session.block(self._next), session)
            else:
                self.served = session.finished
                if session.finished:
                    self.send(End(session.count))
                return

    def ask(self) -> None:
        """Have the reader say what it has taken; nothing when it will say so anyway, or before it was accepted."""
        if self._session is not None and not (self.served or self._asking):
            self._asking = True
            self.send(Idle())

    def over(self, kind: Kind, why: str) -> None:
        """The session has ended."""
        self._session = self._block = None
        self.send(Failed(kind, why[:WHY_LIMIT]))
        self.close()

    # Called by the connection.

    def opened(self) -> None:
        """Wait for the hello."""
        if self.transport is not None:
            name = self.transport.get_extra_info("peername")
            self.peer = str(name[0]) if isinstance(name, tuple) else ""
        if self.peer and not self._ends.admits(self.peer):
            self._ends.refused += 1
            self.abort()
            return
        self._ends.add(self)
        if self.transport is not None:
            self.transport.set_write_buffer_limits(PIECE)

    def received(self, frame: Frame) -> None:
        """What the reader says."""
        if isinstance(frame, Hello) and self._session is None:
            self._hello(frame)
        elif self._session is None:
            raise FrameError(f"{type(frame).__name__} before Hello")
        else:
            self._session.touch()
            match frame:
                case Credit(size, taken):
                    self._credit = min(self._credit + size, WINDOW)
                    self._took(taken, self._session)
                    self.more()
                case Done() if self.served:
                    session, self._session = self._session, None
                    session.end("read")
                    self.close()
                case Idle(taken):
                    self._asking = self._asking and taken <= self._session.first
                    self._took(taken, self._session)
                case _:
                    raise FrameError(f"{type(frame).__name__} is not for a reader to send")

    def pause_writing(self) -> None:
        """The socket is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._paused = False
        self.more()

    def damaged(self, why: str) -> None:
        """Say so; the reader may come again."""
        self.send(Failed("damaged", why[:WHY_LIMIT]))
        self.close()

    def lost(self) -> None:
        """The reader has broken off, unless the session has ended."""
        self._ends.discard(self)
        session, self._session, self._block = self._session, None, None
        if session is not None:
            session.detach()

    def _hello(self, hello: Hello) -> None:
        if hello.version != VERSION:
            self.over("failed", f"the source speaks version {VERSION}, the reader version {hello.version}")
            return
        if not self.prepared():
            self.over("unreachable", "the source has no memory free for this connection")
            return
        try:
            self._ends.require_signed(hello)
            session = self._sessions.attach(hello.session, hello.layout, self, hello.first)
        except TransferError as error:
            self.over(error.kind, str(error))
            return
        self._session = session
        self.unknown = False
        self._next = hello.first
        self.attached()
        self.send(Accept())
        self.more()
        session.ask()

    def _took(self, taken: int, session: Session) -> None:
        if taken > max(self._next, session.first):
            raise FrameError(f"{taken} blocks were taken of {self._next} that were sent")
        session.acknowledge(taken)

    def _begin(self, block: Stored, session: Session) -> None:
        self.send(Head(block.name, len(block.data), block.checksum))
        self._block, self._offset = block, 0
        if not block.data:
            self._sent(block, session)

    def _piece(self, block: Stored, session: Session) -> bool:
        """Send the next piece of the block; False: there is no room."""
        size = min(len(block.data) - self._offset, self._credit, self.room())
        if size <= 0:
            return False
        self.carry(pack(Piece(size)), memoryview(block.data)[self._offset : self._offset + size])
        self._offset += size
        self._credit -= size
        if self._offset == len(block.data):
            self._sent(block, session)
        return True

    def _sent(self, block: Stored, session: Session) -> None:
        self._block = None
        self._next += 1
        session.sent(block)
