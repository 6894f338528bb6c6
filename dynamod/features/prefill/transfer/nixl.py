"""Between nodes with RDMA: frames over TCP, the bytes of pieces by reads of the source's memory.

One NIXL agent per process, with memory that is registered once for MOST connections of each kind. A connection for
which nothing is free takes the next backend. A reader that knows one session of a source can read
all pieces under way there.
"""

import asyncio
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dynamod.message.install import extra_hint

from .base import Kind, Listening, TransferError
from .frames import AGENT_LIMIT, WINDOW, Frame, FrameError, Region
from .reading import ReaderEnd
from .ring import Ring
from .sending import SourceEnd
from .tcp import Tcp

T = TypeVar("T")

MOST = 16
"""Connections that may have memory at the same time, in each process."""

DEVICES = Path("/sys/class/infiniband")
"""Where Linux lists network cards that read the memory of other machines."""

_SPIN = 0.0002
"""Seconds in which a read is awaited without giving way: most are done by then."""

_POLL = 0.0005
"""Seconds between two looks at a read that takes longer."""

_lock = threading.Lock()


class _Agent:
    """The agent of this process, its memory and which parts of that are free."""

    def __init__(self) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        api = importlib.import_module("nixl._api")
        self._name = f"dynamod-{secrets.token_hex(8)}"
        self.api = api.nixl_agent(self._name, api.nixl_agent_config(backends=["UCX"]))
        memory = mmap.mmap(-1, MOST * WINDOW)
        self._memory = memoryview(memory)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.api.register_memory([(self._base, len(memory), 0, "")], "DRAM")
        self.metadata: bytes = self.api.get_agent_metadata()
        if len(self.metadata) > AGENT_LIMIT:
            raise OSError(f"the agent needs {len(self.metadata)} bytes to be described, above {AGENT_LIMIT}")
        self._free = list(range(MOST))
        self._known: dict[bytes, str] = {}  # other agents, by their metadata

    def take(self) -> "_Part | None":
        """Memory for one connection."""
        if not self._free:
            return None
        index = self._free.pop()
        start = index * WINDOW
        return _Part(self._memory[start : start + WINDOW], self._base + start, lambda: self._free.append(index))

    def known(self, metadata: bytes) -> str:
        """The name of the agent that the metadata describe."""
        if metadata == self.metadata:
            return self._name
        if metadata not in self._known:
            self._known[metadata] = self.api.add_remote_agent(metadata)
        return self._known[metadata]

    def forget(self, metadata: bytes) -> None:
        """The agent that they describe is gone, or was never reached."""
        name = self._known.pop(metadata, None)
        if name is not None:
            with contextlib.suppress(Exception):
                self.api.remove_remote_agent(name)

    def begin(self, address: int, metadata: bytes, memory: int, offset: int, size: int) -> Any:
        """Begin to read from an agent's memory to `address`; returns the handle."""
        local = self.api.get_xfer_descs([(address, size, 0)], "DRAM")
        there = self.api.get_xfer_descs([(memory + offset, size, 0)], "DRAM")
        handle = self.api.initialize_xfer("READ", local, there, self.known(metadata))
        self.api.transfer(handle)
        return handle

    def state(self, handle: Any) -> str:
        """PROC or DONE. Raises OSError."""
        state: str = self.api.check_xfer_state(handle)
        if state == "ERR":
            raise OSError("a read failed")
        return state


class _Part(Ring):
    """A ring in the agent's memory, at `address`."""

    def __init__(self, memory: memoryview, address: int, free: Callable[[], None]) -> None:
        super().__init__(memory)
        self.address = address
        self._free: Callable[[], None] | None = free

    def free(self) -> None:
        """Let the next connection have it. Called again, it does nothing."""
        if self._free is not None:
            self._free()
            self._free = None


@functools.cache
def _agent() -> _Agent:
    return _Agent()


def _lacking() -> str:
    """What NIXL lacks here, or nothing: its wheel, or a card. Without one TCP is faster, and its thread never rests."""
    if importlib.util.find_spec("nixl") is None:
        return f"NIXL is not installed: {extra_hint('nixl')}"
    if not (DEVICES.is_dir() and any(DEVICES.iterdir())):
        return f"there is no card for NIXL in {DEVICES}"
    return ""


async def _started() -> _Agent:
    """The agent. Its start takes half a second. Raises OSError."""

    def start() -> _Agent:
        with _lock:
            return _agent()

    try:
        return await asyncio.get_running_loop().run_in_executor(None, start)
    except Exception as error:
        raise OSError(f"NIXL does not start: {error}") from error


class NixlSource(SourceEnd):
    """The source's end."""

    _part: _Part | None = None

    def prepared(self) -> bool:
        """Take memory."""
        self._part = _agent().take()
        return self._part is not None

    def attached(self) -> None:
        """Tell the reader where its pieces will be."""
        if self._part is not None:
            self.send(Region(_agent().metadata, self._part.address))

    def room(self) -> int:
        """Bytes of the next piece."""
        return min(super().room(), self._part.room()) if self._part is not None else 0

    def carry(self, frame: bytes, data: memoryview) -> None:
        """Lay the bytes down, then say so."""
        if self._part is not None and self.transport is not None:
            self._part.write(data)
            self.transport.write(frame)

    def lost(self) -> None:
        """Give the memory back."""
        super().lost()
        if self._part is not None:
            self._part.free()
            self._part = None


class NixlReader(ReaderEnd):
    """The reader's end. `part` is its memory, set before the connection is made."""

    part: _Part
    _remote: tuple[bytes, int] | None = None  # the source's agent, and its memory
    _pending: tuple[Any, memoryview] | None = None  # a read that takes longer, and where its bytes belong

    def received(self, frame: Frame) -> None:
        """What the source says."""
        if isinstance(frame, Region) and self._remote is None:
            self._remote = frame.agent, frame.address
            self._try(lambda: _agent().known(frame.agent), "unreachable")
        else:
            super().received(frame)

    def fetch(self, place: memoryview) -> None:
        """Read the bytes of a piece from the source's memory."""
        if self._remote is None or len(place) > self.part.room():
            raise FrameError("a piece goes beyond the memory of the source")
        agent, memory = _agent(), self._remote
        offset = self.part.position
        handle = self._try(lambda: agent.begin(self.part.address + offset, *memory, offset, len(place)))
        if handle is None:
            return
        self._pending = handle, place
        end = time.perf_counter() + _SPIN
        while (state := self._try(lambda: agent.state(handle))) == "PROC" and time.perf_counter() < end:
            pass
        if state == "DONE":
            self._finish()
            self.filled(len(place))
        elif state == "PROC":
            self.hold()
            asyncio.get_running_loop().call_later(_POLL, self._poll)

    def lost(self) -> None:
        """Give the memory back, unless a read cannot be stopped: then it stays as it is."""
        super().lost()
        if self._pending is None or self._try(self._release) is not None:
            self.part.free()

    def _poll(self) -> None:
        if self._pending is None:
            return
        handle, place = self._pending
        state = self._try(lambda: _agent().state(handle))
        if state == "DONE":
            self._finish()
            self.resume(place)
        elif state == "PROC":
            asyncio.get_running_loop().call_later(_POLL, self._poll)

    def _finish(self) -> None:
        assert self._pending is not None
        self.part.read(self._pending[1])
        self._release()

    def _release(self) -> bool:
        assert self._pending is not None
        handle, self._pending = self._pending[0], None
        handle.release()
        return True

    def _try(self, work: Callable[[], T], kind: Kind = "short") -> T | None:
        """Do something of NIXL's, whose errors have no common base; None: it failed, and so has the transfer."""
        try:
            return work()
        except Exception as error:
            if self._remote is not None:
                _agent().forget(self._remote[0])
            self._fail(TransferError(kind, f"NIXL does not reach the source: {error}"))
            return None


class Nixl:
    """A backend. The address is that of the TCP connection for the frames."""

    async def listen(
        self, source: Callable[[type[SourceEnd]], SourceEnd], host: str, folder: Path | None, port: int
    ) -> Listening | None:
        """Listen at a free port of `host`, since TCP has `port`; None where NIXL is of no use. Raises OSError."""
        if _lacking():
            return None
        await _started()
        return await Tcp().listen(lambda _: source(NixlSource), host, folder, 0)

    async def connect(self, address: str, reader: Callable[[type[ReaderEnd]], ReaderEnd]) -> ReaderEnd:
        """Connect. Raises OSError, also where NIXL is of no use or no memory is free."""
        if lacking := _lacking():
            raise OSError(lacking)
        part = (await _started()).take()
        if part is None:
            raise OSError("no memory is free for NIXL")

        def made(_: type[ReaderEnd]) -> ReaderEnd:
            end = reader(NixlReader)
            assert isinstance(end, NixlReader)
            end.part = part
            return end

        try:
            return await Tcp().connect(address, made)
        except BaseException:
            part.free()
            raise
