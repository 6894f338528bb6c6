"""The tier of files. One thread writes and removes, another one reads: neither the loop nor a step waits for a disk."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dynamod.actor.threads import last_work
from dynamod.kvcache.store import Publish
from dynamod.observe.bounded import bounded

from .files import BlockFiles, occupied
from .level import Level

log = logging.getLogger("dynamod.kvcache")

PENDING = 1 << 26
"""Bytes that may wait to be written; what comes beyond is not taken."""

PAUSE = 30.0
"""Seconds without writing after a write that has failed (the disk may be full), and without reading after a read that
took too long."""

CLOSE = 3.0
"""Seconds that `close` waits for what is being written."""


class DiskLevel(Level):
    """Blocks in `files`, those of an earlier worker too. Made and called on the event loop."""

    def __init__(self, most: int, publish: Publish, files: BlockFiles, known: Sequence[tuple[int, int]]) -> None:
        """`known`: what `files.scan()` has found."""
        super().__init__("DISK", most, publish)
        self._files = files
        self._loop = asyncio.get_running_loop()
        self._reader, self._writer = (ThreadPoolExecutor(1, f"kv-{what}") for what in ("read", "write"))
        self._pending: dict[int, int] = {}  # being written: name to bytes
        self._waiting = 0  # bytes of them
        self._paused = self._resting = 0.0  # until then nothing is written, and nothing is read
        self._closed = False
        bounded(self, "KV blocks to write", PENDING, lambda one: one._waiting, "bytes")
        if known:
            self.enter(known)

    def ready(self, name: int) -> bool:
        """Whether a block is here, and the disk has answered in time."""
        return name in self._sizes and self._loop.time() >= self._resting

    def gave_up(self) -> None:
        """A request has stopped waiting for a block: other requests need not wait for the disk for PAUSE seconds."""
        super().gave_up()
        self._resting = self._loop.time() + PAUSE

    def put(self, name: int, size: int, data: bytes = b"") -> None:
        """Have a block written: it is here when that is done."""
        if name in self._sizes or name in self._pending:
            return
        if self._waiting + size > PENDING or occupied(size) > self.most or self._loop.time() < self._paused:
            self.refused += 1
            return
        self._pending[name] = size
        self._waiting += size
        self._do(self._writer, functools.partial(self._files.write, name, data), functools.partial(self._wrote, name))

    def read(self, name: int, told: Callable[[bytes | None], object]) -> None:
        """Have a block read; `told` gets its bytes on the loop, None when they cannot be had."""
        self._do(
            self._reader, functools.partial(_timed, self._files, name), functools.partial(self._has_read, name, told)
        )

    def free(self, names: Sequence[int]) -> None:
        """Remove their files."""
        for name in names:
            self._do(self._writer, functools.partial(self._files.remove, name), lambda _none: None)

    async def close(self) -> None:
        """Wait until everything is written, if that does not take long, and leave the folder."""
        if self._closed:
            return
        self._closed = True
        self._reader.shutdown(wait=False, cancel_futures=True)
        if not await last_work(self._writer, self._files.close, CLOSE):
            log.warning("KV blocks: the disk does not answer")

    def _wrote(self, name: int, result: Any) -> None:
        size = self._pending.pop(name)
        self._waiting -= size
        if isinstance(result, Exception):
            self.failed += 1
            self._paused = self._loop.time() + PAUSE
            log.warning("a KV block was not written, and none is for %g s: %s", PAUSE, result)
        else:
            super().put(name, occupied(size))

    def _has_read(self, name: int, told: Callable[[bytes | None], object], result: Any) -> None:
        if isinstance(result, Exception):
            self.failed += 1
            log.warning("a KV block was not read: %s", result)
            self.discard(name)
            told(None)
            return
        data, seconds = result
        self.loaded += 1
        self.load_seconds += seconds
        told(data)

    def _do(self, thread: ThreadPoolExecutor, work: Callable[[], object], told: Callable[[Any], None]) -> None:
        """Have a thread do something; `told` gets the result, or the exception, on the loop. Nothing once closed."""
        if self._closed:
            return

        def done(future: "Future[object]") -> None:
            if future.cancelled():
                return
            result = future.exception() or future.result()
            try:
                self._loop.call_soon_threadsafe(told, result)
            except RuntimeError:  # it has been closed
                pass

        thread.submit(work).add_done_callback(done)


def _timed(files: BlockFiles, name: int) -> tuple[bytes, float]:
    began = time.monotonic()
    return files.read(name), time.monotonic() - began
