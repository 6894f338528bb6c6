"""What a link over NATS puts around a payload: numbers that make loss visible, and pieces that fit the broker's limit.

Each message is 14 bytes of header (little-endian), then a body:

    u8 version | u8 kind | u32 length of the whole payload | u64 sequence number in this direction of the link

DATA carries a payload or a piece of one; the pieces of a payload follow each other, and numbers go up by one per
message. ALIVE says "I have sent n messages so far" and is answered by ECHO, which says the same and is not answered.
END closes the link; its body is the reason. ALIVE, ECHO and END have no number of their own.
"""

import struct

from dynamod.transport.framing import LIMIT, FrameError

VERSION = 1
HEADER = struct.Struct("<BBIQ")
DATA, ALIVE, ECHO, END = range(4)


class WireError(Exception):
    """The link cannot continue; the text says why."""


class PeerEndedError(WireError):
    """The other end has closed the link; the text is its reason."""


class Budget:
    """Bytes that all half-received payloads of a process may hold together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Raises WireError when the limit would be passed."""
        if self.used + size > self._limit:
            raise WireError(f"half-received messages hold more than {self._limit} bytes")
        self.used += size

    def give(self, size: int) -> None:
        """Return what was taken."""
        self.used -= size


class Sender:
    """Numbers the messages of one direction of a link. `sequence` is the last number used, 0 for none."""

    def __init__(self) -> None:
        self.sequence = 0

    def cut(self, payload: bytes, room: int) -> list[bytes]:
        """The messages of a payload, with at most `room` bytes of body each. Raises FrameError above framing.LIMIT."""
        size = len(payload)
        if size <= room:
            self.sequence += 1
            return [HEADER.pack(VERSION, DATA, size, self.sequence) + payload]
        if size > LIMIT:
            raise FrameError(f"a message of {size} bytes is above the limit of {LIMIT}")
        messages = []
        for start in range(0, size, room):
            self.sequence += 1
            messages.append(HEADER.pack(VERSION, DATA, size, self.sequence) + payload[start : start + room])
        return messages

    def alive(self, kind: int = ALIVE) -> bytes:
        """A sign of life, ALIVE or ECHO."""
        return HEADER.pack(VERSION, kind, 0, self.sequence)


def end(why: str) -> bytes:
    """The message that closes a link."""
    return HEADER.pack(VERSION, END, 0, 0) + why.encode()


def header(message: bytes) -> tuple[int, int, int]:
    """Kind, length of the whole payload and sequence number. Raises WireError for what is no message of ours."""
    try:
        version, kind, length, number = HEADER.unpack_from(message)
    except struct.error:
        raise WireError("corrupt message: too short") from None
    if version != VERSION:
        raise WireError(f"the other end speaks version {version} of the protocol over NATS, this one {VERSION}")
    return kind, length, number


class Receiver:
    """Checks the numbers of one direction of a link and puts pieces together."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self._size = self._length = 0  # of the payload in pieces: so far, and in the end
        self.sequence = 0
        self.doubled = 0
        self.asked = False  # an ALIVE has come since this was last cleared

    def take(self, message: bytes) -> bytes | None:
        """A payload that is complete with this message, else None. Doubled messages are dropped.

        Raises WireError when messages were lost or are corrupt, PeerEndedError when the other end closed the link.
        The receiver is of no use afterwards.
        """
        kind, length, number = header(message)
        if kind != DATA:
            self._sign(kind, number, message)
            return None
        expected = self.sequence + 1
        if number != expected:
            if number < expected:
                self.doubled += 1
                return None
            raise _lost(number - expected)
        self.sequence = number
        body = len(message) - HEADER.size
        if body == length and not self._pieces:
            return message[HEADER.size :]
        return self._piece(message, length, body)

    def _piece(self, message: bytes, length: int, body: int) -> bytes | None:
        if not self._pieces:
            self._length = length
        self._size += body
        if not body or length != self._length or length > LIMIT or self._size > length:
            self._size -= body
            raise WireError("corrupt message: its pieces do not fit together")
        try:
            self._budget.take(body)
        except WireError:
            self._size -= body
            raise
        self._pieces.append(message[HEADER.size :])
        if self._size < length:
            return None
        payload = b"".join(self._pieces)
        self.drop()
        return payload

    def _sign(self, kind: int, number: int, message: bytes) -> None:
        if kind == END:
            raise PeerEndedError(message[HEADER.size :].decode(errors="replace") or "the other end closed the link")
        if kind not in (ALIVE, ECHO):
            raise WireError(f"corrupt message: kind {kind}")
        if number > self.sequence:
            raise _lost(number - self.sequence)
        self.asked = self.asked or kind == ALIVE

    def drop(self) -> None:
        """Forget the pieces of a payload that is not complete."""
        self._budget.give(self._size)
        self._pieces.clear()
        self._size = 0


def _lost(count: int) -> WireError:
    return WireError(f"the connection lost frames ({count} message{'s' if count > 1 else ''} missing)")
