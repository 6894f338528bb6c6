"""Ways of KV blocks between a prefill worker and who reads them: they damage, cut, hold and exchange them."""

import contextlib
import mmap
import os
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from dynamod.features.prefill.transfer.frames import WINDOW, Hello, pack, unpack
from dynamod.message.ingress import Delta, Frame, Items
from dynamod.message.worker import Handoff

from .meddler import TransportSelector, UnixMeddler
from .ways import closed, ended


class Fault:
    """What happens on a way; each passes everything on but for what it overrides. `reached`: it has happened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.over = threading.Event()

    def hello(self, hello: Hello) -> Hello:
        """What the reader says first."""
        return hello

    def blocks(self, before: int, data: bytes, way: "BlockWay") -> Iterator[bytes]:
        """What comes of what the source says, `before` bytes behind the beginning. Raises EOFError to end it."""
        index = way.at - before
        if 0 <= index < len(data):
            yield data[:index]
            self.reached.set()
            yield from self.happens(data[index:])
        else:
            yield data

    def happens(self, data: bytes) -> Iterator[bytes]:
        """What comes in place of these bytes."""
        yield data


class Damaged(Fault):
    """One bit is another."""

    def happens(self, data: bytes) -> Iterator[bytes]:
        yield bytes((data[0] ^ 1,)) + data[1:]


class Truncated(Fault):
    """Some bytes are missing."""

    def happens(self, data: bytes) -> Iterator[bytes]:
        yield data[11:]


class Ended(Fault):
    """The connection ends amid the blocks."""

    def happens(self, data: bytes) -> Iterator[bytes]:
        raise EOFError
        yield data


class Stalled(Fault):
    """Nothing comes any more, and nobody is told, until `over`."""

    def happens(self, data: bytes) -> Iterator[bytes]:
        self.over.wait(60)
        yield data


class Lost(Fault):
    """Nothing comes any more, and at `over` the way ends: what the source has written, and nobody read, is lost."""

    def happens(self, data: bytes) -> Iterator[bytes]:
        self.over.wait(60)
        raise EOFError
        yield data


class Slow(Fault):
    """What is left takes so many seconds more, and comes whole."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def happens(self, data: bytes) -> Iterator[bytes]:
        parts = 20
        size = len(data) // parts + 1
        for start in range(0, len(data), size):
            time.sleep(self._seconds / parts)
            yield data[start : start + size]


class Late(Fault):
    """The reader is held up for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def hello(self, hello: Hello) -> Hello:
        self.reached.set()
        time.sleep(self._seconds)
        return hello


class Tampered(Fault):
    """Bytes in the shared memory change that were written, and not yet read."""

    def blocks(self, before: int, data: bytes, way: "BlockWay") -> Iterator[bytes]:
        if before + len(data) > way.at:
            self.reached.set()
            assert isinstance(way, SharedWay)
            for place in range(0, WINDOW, 1024):
                way.memory[place : place + 8] = b"tampered"
        yield data


class Exchanged(Fault):
    """Two readers get each other's blocks."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)
        self._sessions: list[str] = []

    def hello(self, hello: Hello) -> Hello:
        self._sessions.append(hello.session)
        self._both.wait(20)
        self.reached.set()
        [other] = [one for one in self._sessions if one != hello.session]
        return msgspec.structs.replace(hello, session=other)


class BlockWay(ABC):
    """A listener in the place of a source's. `at`: the byte at which faults happen, behind some blocks."""

    at: int
    address: dict[str, str]

    def __init__(self, listener: socket.socket, fault: Fault) -> None:
        self.source: dict[str, str] = {}
        self.fault = fault
        self._listener = listener
        self._sockets: list[socket.socket] = [listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        """End all connections."""
        self.fault.over.set()
        closed(self._sockets, self._threads)

    @abstractmethod
    def connect(self, reader: socket.socket) -> socket.socket:
        """The source of what `reader` asks for."""

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                reader, _ = self._listener.accept()
                source = self.connect(reader)
                self._sockets += [reader, source]
                self._start(self._up, reader, source)
                self._start(self._down, source, reader)

    def _up(self, reader: socket.socket, source: socket.socket) -> None:
        with contextlib.suppress(OSError):
            data = reader.recv(1 << 16)
            found = unpack(memoryview(data))
            if found is not None and isinstance(found[0], Hello):
                data = pack(self.fault.hello(found[0])) + data[found[1] :]
            while data:
                source.sendall(data)
                data = reader.recv(1 << 16)
        ended(reader, source)

    def _down(self, source: socket.socket, reader: socket.socket) -> None:
        before = 0
        with contextlib.suppress(OSError, EOFError):
            while data := source.recv(1 << 16):
                for part in self.fault.blocks(before, data, self):
                    reader.sendall(part)
                before += len(data)
        ended(source, reader)


class TcpWay(BlockWay):
    """Over TCP."""

    at = 50_000

    def __init__(self, folder: Path, fault: Fault) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = {"tcp": f"127.0.0.1:{listener.getsockname()[1]}"}
        super().__init__(listener, fault)

    def connect(self, reader: socket.socket) -> socket.socket:
        host, _, port = self.source["tcp"].rpartition(":")
        source = socket.create_connection((host, int(port)), 5)
        source.settimeout(None)
        return source


class SharedWay(BlockWay):
    """Inside a node. The memory is passed on, and mapped here too."""

    at = 200
    memory: mmap.mmap

    def __init__(self, folder: Path, fault: Fault) -> None:
        path = folder / f"{len(os.listdir(folder))}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        self.address = {"shm": str(path)}
        super().__init__(listener, fault)

    def connect(self, reader: socket.socket) -> socket.socket:
        source = socket.socket(socket.AF_UNIX)
        source.connect(self.source["shm"])
        first, [descriptor], _, _ = socket.recv_fds(source, 1, 1)
        socket.send_fds(reader, [first], [descriptor])
        self.memory = mmap.mmap(descriptor, WINDOW)
        os.close(descriptor)
        return source


class Detour:
    """Stands between an ingress and a prefill worker, before they have met: readers are sent to `way`, if any."""

    def __init__(self, prefill_worker: Path) -> None:
        self.way: BlockWay | None = None
        self._meddler = UnixMeddler(prefill_worker)
        self._meddler.fault = self._fault

    def close(self) -> None:
        """End all connections."""
        self._meddler.close()

    def _fault(self, mail: TransportSelector) -> list[TransportSelector]:
        if self.way is None or not mail.frame.deltas:
            return [mail]
        body = msgspec.msgpack.encode(Frame(tuple(self._changed(delta) for delta in mail.frame.deltas)))
        return [replace(mail, head=struct.pack("<I", len(body)), body=body)]

    def _changed(self, delta: Delta) -> Delta:
        if isinstance(delta, Items) and self.way is not None:
            for item in delta.items:
                with contextlib.suppress(msgspec.MsgspecError, TypeError):
                    handoff = msgspec.msgpack.decode(item, type=Handoff)
                    self.way.source = handoff.addresses
                    changed = msgspec.structs.replace(handoff, addresses=self.way.address)
                    return msgspec.structs.replace(delta, items=(msgspec.msgpack.encode(changed),))
        return delta
