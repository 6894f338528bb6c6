"""How much a client may ask for: buckets that fill with time. Pure: the caller passes the time.

A bucket holds what may be used in a minute, and is full at first. What is used leaves it, and it fills evenly. So any
window of `t` seconds allows what a bucket holds and `t / 60` of that again.
"""

import math

MINUTE = 60.0


class Bucket:
    """Holds `size` units, and gets as many in a minute. Times are seconds of one clock that never goes back."""

    __slots__ = ("_at", "_level", "size")

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self._level, self._at = float(size), now

    def level(self, now: float) -> float:
        """Units that are there; below zero when more was used than there was."""
        return min(float(self.size), self._level + max(0.0, now - self._at) * self.size / MINUTE)

    def use(self, units: float, now: float) -> None:
        """Take units out, whether they are there or not."""
        self._level, self._at = self.level(now) - units, max(now, self._at)

    def wait(self, now: float) -> float:
        """Seconds until there is one unit; 0 when there is."""
        return max(0.0, (1.0 - self.level(now)) * MINUTE / self.size)

    def full_in(self, now: float) -> float:
        """Seconds until it is full."""
        return (self.size - self.level(now)) * MINUTE / self.size

    def resized(self, size: int, now: float) -> "Bucket":
        """One of another size with the same share in it."""
        made = Bucket(size, now)
        made.use(size - self.level(now) * size / self.size, now)
        return made


def remaining(bucket: Bucket, now: float) -> int:
    """Whole units that are left."""
    return max(0, math.floor(bucket.level(now) + 1e-9))


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `120ms`, `1.5s`, `6m0s`."""
    if seconds <= 0:
        return "0s"
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < MINUTE:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
