"""The exporter process of an ingress process: started with its first span, fed by a thread, ended with its owner."""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from . import exporter
from .handed import Collector, Told

SEND_S = 2.0
"""Seconds in which the exporter takes what is written to it. It always reads, whatever its collector does."""
AGAIN_S = 5.0
"""Seconds from the end of an exporter until another one is started."""
_NOTHING = Told(0, 0)


class ExporterPipe:
    """A `observe.line_writer.LineFile` whose lines an exporter process turns into spans."""

    def __init__(self, collector: Collector) -> None:
        self.failure = ""
        self._collector = collector
        self._process: subprocess.Popen[bytes] | None = None
        self._before, self._last = _NOTHING, _NOTHING  # of exporters that have ended, of this one
        self._sent = 0  # requests that this one has
        self._said = b""
        self._since = 0.0
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """For the log."""
        return Path(self._collector.url)

    def append(self, lines: Sequence[bytes]) -> int:
        """Give requests to the exporter. Returns how many it has."""
        with self._lock:
            self.failure = ""
            process = self._running()
            if process is None:
                return 0
            assert process.stdin is not None
            done = len(lines)
            if not _written(process.stdin.fileno(), b"".join(lines), time.monotonic() + SEND_S):
                self.failure, done = "the exporter process does not read", 0
                self._drop(process)
            self._sent += done
            self._read()
            return done

    def told(self) -> Told:
        """What exporters have said so far."""
        with self._lock:
            self._read()
            return Told(self._before.exported + self._last.exported, self._before.dropped + self._last.dropped)

    def close(self) -> None:
        """Nothing more comes, for now: `end` ends the exporter."""

    def end(self, seconds: float) -> None:
        """Have the exporter send what it has, and end."""
        with self._lock:
            process = self._process
            if process is None:
                return
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._drop(process)

    def _running(self) -> "subprocess.Popen[bytes] | None":
        process = self._process
        if process is not None and process.poll() is not None:
            self._drop(process)
            process = None
        now = time.monotonic()
        if process is None:
            if self._since and now - self._since < AGAIN_S:
                self.failure = "the exporter process has ended"
                return None
            self._since = now
            try:
                process = subprocess.Popen(  # in a session of its own: Ctrl-C would end it before its last spans
                    [sys.executable, "-m", exporter.__name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self.failure = f"no exporter process: {error.strerror}"
                return None
            assert process.stdin is not None
            assert process.stdout is not None
            os.set_blocking(process.stdin.fileno(), False)
            os.set_blocking(process.stdout.fileno(), False)
            self._process = process
            _written(process.stdin.fileno(), msgspec.json.encode(self._collector) + b"\n", now + SEND_S)
        return process

    def _read(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        with contextlib.suppress(BlockingIOError, ValueError):
            while data := os.read(process.stdout.fileno(), 65536):
                self._said += data
        *lines, self._said = self._said.split(b"\n")
        if lines:
            self._last = msgspec.json.decode(lines[-1], type=Told)

    def _drop(self, process: "subprocess.Popen[bytes]") -> None:
        """The process has ended, or is of no use: what it has not said to be exported is lost."""
        self._read()
        if process.poll() is None:
            process.kill()
            process.wait()
        lost = max(self._sent - self._last.exported, self._last.dropped)
        self._before = Told(self._before.exported + self._last.exported, self._before.dropped + lost)
        self._process, self._last, self._sent, self._said = None, _NOTHING, 0, b""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _written(fd: int, data: bytes, until: float) -> bool:
    """Write all of it until then; False: it cannot be done."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0 or not select.select([], [fd], [], left)[1]:
                return False
        except OSError:
            return False
    return True
