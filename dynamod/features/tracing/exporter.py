"""The exporter process: reads requests from its owner, makes their spans, and sends them to a collector.

It reads whatever the collector does: requests above WAITING are dropped and counted. It ends when its owner closes the
pipe, or has been killed.
"""

import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from .handed import Collector, Handed, Told

if TYPE_CHECKING:
    from .otlp import Sender

WAITING = 8192
"""Requests that wait for a collector."""
BATCH = 256
"""Requests that are sent together."""
PAUSE_S = 0.5
"""Seconds for which requests are gathered."""
SAY_S = 60.0
"""Seconds between two lines about dropped requests."""
TRIES = 4
"""Sends of one batch to a collector that cannot take it now."""
LAST_S = 2.0
"""Seconds for what is left when the owner has ended."""


class Exporter:
    """Takes lines in one thread and sends batches in another."""

    def __init__(self, collector: Collector, sender: "Sender") -> None:
        self._collector, self._sender = collector, sender
        self._waiting: deque[Handed] = deque()
        self._changed = threading.Condition()
        self._ends = 0.0  # when the last send must be over
        self.exported = self.dropped = 0
        self._next_word = 0.0

    def take(self, line: bytes) -> None:
        """One request."""
        try:
            handed = msgspec.json.decode(line, type=Handed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._drop(1, f"a request cannot be read: {error}")
            return
        with self._changed:
            if len(self._waiting) < WAITING:
                self._waiting.append(handed)
                if len(self._waiting) in (1, BATCH):  # what the other thread waits for
                    self._changed.notify()
                return
        self._drop(1, "the collector is too slow")

    def stop(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._ends = time.monotonic() + LAST_S
            self._changed.notify()

    def run(self) -> None:
        """Send until `stop` was called and nothing is left."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._ends:
                    self._changed.wait_for(lambda: self._ends or len(self._waiting) >= BATCH, PAUSE_S)
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            if batch:
                self._send(batch)
            elif self._ends:
                return
            self._tell()

    def _send(self, batch: list[Handed]) -> None:
        pause, why = 0.25, ""
        try:
            data = self._sender.encoded(batch)
        except Exception as error:  # a bug with one request must not end the others
            self._drop(len(batch), f"spans cannot be made: {type(error).__name__}: {error}")
            return
        for turn in range(TRIES):
            left = self._ends - time.monotonic() if self._ends else self._sender.timeout
            if left <= 0:
                break
            why, again = self._sender.send(data, min(left, self._sender.timeout))
            if not why:
                self.exported += len(batch)
                return
            if not again or turn == TRIES - 1:
                break
            with self._changed:
                left = self._ends - time.monotonic() if self._ends else pause
                self._changed.wait_for(lambda: self._ends, max(0.0, min(pause, left)))
            pause *= 2
        self._drop(len(batch), why or "no time was left at the end")

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + SAY_S
            text = f"traces: {self._collector.url}: {why}; {self.dropped} requests are in no trace so far"
            print(text, file=sys.stderr, flush=True)

    def _tell(self) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(Told(self.exported, self.dropped)) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Read the collector, then requests, until the end of standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the pipe ends it, after the last spans
    first = sys.stdin.buffer.readline()
    if not first:
        return
    from .otlp import Sender

    collector = msgspec.json.decode(first, type=Collector)
    exporter = Exporter(collector, Sender(collector))
    thread = threading.Thread(target=exporter.run, name="sender")
    thread.start()
    for line in sys.stdin.buffer:
        exporter.take(line)
    exporter.stop()
    thread.join()


if __name__ == "__main__":
    main()
