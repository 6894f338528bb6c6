"""Ways for mail that is doubled, swapped, damaged, forged or lost on them: whole messages, as the protocol has them."""

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dynamod.message import kv_events as cache
from dynamod.message.ingress import Frame, Items, Step, Tokens
from dynamod.transport.framing import MAGIC
from dynamod.transport.nats.wire import DATA, HEADER, VERSION

from .ways import Way, ended

_VERB = re.compile(rb"(?:PUB|MSG) (\S+) [^\r\n]*?(\d+)\r\n", re.IGNORECASE)
_LENGTH = struct.Struct("<I")
_frames = msgspec.msgpack.Decoder(Frame)


@dataclass(frozen=True)
class TransportSelector:
    """One payload of a link. `head` and `tail` are what the transport puts around it."""

    subject: bytes
    head: bytes
    body: bytes
    tail: bytes = b""

    @property
    def raw(self) -> bytes:
        return self.head + self.body + self.tail

    @property
    def frame(self) -> Frame:
        """What it tells an ingress; an empty frame when it is for a worker."""
        try:
            return _frames.decode(self.body)
        except msgspec.MsgspecError:
            return Frame(())

    @property
    def feed(self) -> Items | None:
        """What it tells of blocks that are new in a worker's cache."""
        for delta in self.frame.deltas:
            if isinstance(delta, Items) and all(isinstance(item, bytes) for item in delta.items):
                words = [word for item in delta.items for word in cache.unpack(item)]
                if any(isinstance(word, cache.Stored) for word in words):
                    return delta
        return None

    @property
    def goes_on(self) -> bool:
        """Whether more comes on every stream that it tells of: a loss shows in their offsets."""
        return all(
            isinstance(delta, Step) or (isinstance(delta, Items | Tokens) and delta.finish is None)
            for delta in self.frame.deltas
        )

    def damaged(self) -> "TransportSelector":
        """No frame any more, but still of its length and under its number."""
        return replace(self, body=b"\xc1" * len(self.body))

    def forged(self, ahead: int, blocks: int) -> "TransportSelector":
        """News of blocks that nobody has, on the same link of NATS, `ahead` numbers after this message."""
        feed = self.feed
        assert feed is not None
        names = tuple(range(1, blocks + 1))
        item = cache.pack((cache.Stored(None, names, names),))
        body = msgspec.msgpack.encode(Frame((Items(feed.stream, feed.offset, (item,)),)))
        number = HEADER.unpack(self.head[-HEADER.size :])[3] + ahead
        words = [*self.head[: -HEADER.size].split()[:-1], b"%d\r\n" % (HEADER.size + len(body))]
        return replace(self, head=b" ".join(words) + HEADER.pack(VERSION, DATA, len(body), number), body=body)


Fault = Callable[[TransportSelector], list[TransportSelector]]
"""What arrives in place of a message."""


class Meddler(Way):
    """A way to a NATS server. While `fault` is set, all that links carry on it goes through it, in both directions."""

    fault: Fault | None = None

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while more := source.recv(1 << 16):
                self._flows.wait()
                out, data = self._through(data + more)
                sink.sendall(out)
        ended(source, sink)

    def _through(self, data: bytes) -> tuple[bytes, bytes]:
        """What goes on now, and the beginning of what is not whole yet."""
        out, place = [], 0
        while part := self._next(data, place):
            place += len(part.raw if isinstance(part, TransportSelector) else part)
            fault = self.fault
            if isinstance(part, TransportSelector):
                out += [mail.raw for mail in ([part] if fault is None else fault(part))]
            else:
                out.append(part)
        return b"".join(out), data[place:]

    def _next(self, data: bytes, place: int) -> TransportSelector | bytes:
        """The part that begins at `place`, empty when it is not whole. What no link sends is bytes."""
        end = data.find(b"\r\n", place) + 2
        if end < 2:
            return b""
        match = _VERB.fullmatch(data, place, end)
        if match is None:
            return data[place:end]
        stop, begin = end + int(match[2]), end + HEADER.size
        if len(data) < stop + 2:
            return b""
        if stop <= begin or tuple(data[end : end + 2]) != (VERSION, DATA):
            return data[place : stop + 2]
        return TransportSelector(match[1], data[place:begin], data[begin:stop], b"\r\n")


class UnixMeddler(Meddler):
    """Stands at a worker's socket in its place. Who is connected already does not notice."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._target_path = f"{self._path}.m"
        os.rename(self._path, self._target_path)
        self._flows = threading.Event()
        self._flows.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._start(self._accept)

    def close(self) -> None:
        super().close()
        for path in (self._path, self._target_path):
            Path(path).unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                ours, _ = self._listener.accept()
                theirs = socket.socket(socket.AF_UNIX)
                theirs.connect(self._target_path)
            except OSError:
                return
            self._sockets += [ours, theirs]
            self._start(self._pump, ours, theirs)
            self._start(self._pump, theirs, ours)

    def _next(self, data: bytes, place: int) -> TransportSelector | bytes:
        if data.startswith(MAGIC, place):
            return MAGIC
        begin = place + _LENGTH.size
        if len(data) < begin:
            return b""
        stop = begin + _LENGTH.unpack_from(data, place)[0]
        return TransportSelector(b"", data[place:begin], data[begin:stop]) if stop <= len(data) else b""


class Doubling:
    """Every message comes twice, and every fifth once more behind a later one."""

    def __init__(self) -> None:
        self.made = 0
        self._kept: dict[bytes, TransportSelector] = {}

    def __call__(self, mail: TransportSelector) -> list[TransportSelector]:
        self.made += 1
        late = self._kept.pop(mail.subject, None)
        if self.made % 5 == 0:
            self._kept[mail.subject] = mail
        return [mail, mail] if late is None else [mail, mail, late]


class Once:
    """Does something to the first message of a kind; the others pass."""

    def __init__(
        self, kind: Callable[[TransportSelector], object], what: Callable[[TransportSelector], list[TransportSelector]]
    ) -> None:
        self.made = 0
        self._kind, self._what = kind, what

    def __call__(self, mail: TransportSelector) -> list[TransportSelector]:
        if self.made or not self._kind(mail):
            return [mail]
        self.made = 1
        return self._what(mail)


class Swapping:
    """The first message of a kind comes behind the next one to the same reader."""

    def __init__(self, kind: Callable[[TransportSelector], object]) -> None:
        self.made = 0
        self._kind = kind
        self._held: TransportSelector | None = None

    def __call__(self, mail: TransportSelector) -> list[TransportSelector]:
        held = self._held
        if held is None and not self.made and self._kind(mail):
            self._held = mail
            return []
        if held is None or mail.subject != held.subject:
            return [mail]
        self._held = None
        self.made = 1
        return [mail, held]
