"""Which signatures were taken already: a window of nonces, bounded in time and in number."""

from dynamod.observe.bounded import bounded

MOST = 200_000
"""Nonces that a process remembers."""
BUCKETS = 8
"""Parts of the allowed clock difference that are forgotten together."""


class Nonces:
    """Takes each nonce once. `seconds`: how far the time of a signature may be from the clock here.

    Older signatures than what is remembered are not taken either, so a full window costs late messages, and lets none
    in twice.
    """

    def __init__(self, seconds: float, most: int = MOST) -> None:
        self._width, self._most = seconds / BUCKETS, most
        self._buckets: dict[int, set[bytes]] = {}
        self._count, self._floor = 0, -1  # up to the floor nothing is taken any more
        bounded(self, "nonces of signatures", most, lambda one: one._count, "nonces")

    def take(self, nonce: bytes, time: float, now: float) -> bool:
        """Whether this nonce comes for the first time. `time`: of its signature, near `now`; both in seconds."""
        number, here = int(time / self._width), int(now / self._width)
        for old in [old for old in self._buckets if not -BUCKETS - 1 <= old - here <= BUCKETS + 1]:
            self._count -= len(self._buckets.pop(old))  # its time alone refuses it
        if self._floor > here + BUCKETS + 1:  # the clock was set back
            self._floor = -1
        if number <= self._floor:
            return False
        bucket = self._buckets.setdefault(number, set())
        if nonce in bucket:
            return False
        bucket.add(nonce)
        self._count += 1
        if self._count > self._most:
            oldest = min(self._buckets)
            self._count -= len(self._buckets.pop(oldest))
            self._floor = max(self._floor, oldest)
        return True
