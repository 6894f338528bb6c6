"""How much work one rendering of a chat template may be: instructions, bytes that filters make, and processor time.

A template comes with a model, and a rendering keeps all other requests of its process waiting. So the bound is low, and
only messages that are large raise it: a small request cannot cause much work, whatever the template does with it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bound:
    """The most work of one rendering.

    `fuel`: units of minijinja; an instruction costs one, copying instructions more. `size`: bytes that the filters of
    this package produce. `seconds`: processor time, checked when such a filter runs.
    """

    fuel: int
    size: int
    seconds: float


def _bound(fuel: int) -> Bound:
    return Bound(fuel, 8 * fuel, 0.1 + fuel / 10_000_000)


BOUNDS = tuple(_bound(fuel) for fuel in (250_000, 1_000_000, 4_000_000, 10_000_000))
"""The least is enough for 5,000 short messages (about 10 ms of work), the most for 200,000."""
FUEL_PER_SIZE = 16
"""Fuel per unit of `size_of` that a large request gets, as 1,000 messages need in a template that compares each two."""
VALUE_SIZE = 50
"""What a value counts in `size_of`, beyond the characters of a text."""


class TooMuch(Exception):
    """A filter has made too many bytes, or the rendering has taken too long."""


class Work:
    """What the renderings of a template have done so far; each thread has one of its own at a time."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._now = threading.local()

    def begin(self, bound: Bound) -> None:
        """A rendering begins in this thread."""
        self._now.bound, self._now.made, self._now.begun = bound, 0, None

    def enter(self) -> None:
        """A filter begins: the first one starts the clock, which is a system call. Fuel bounds all before that."""
        if getattr(self._now, "begun", 0.0) is None:
            self._now.begun = self._clock()

    def charge(self, size: int) -> None:
        """A filter has made so many bytes. Raises TooMuch."""
        now = self._now
        if (bound := getattr(now, "bound", None)) is None:
            return  # not in a rendering
        now.made += size
        if now.made > bound.size:
            raise TooMuch(f"its filters make more than {bound.size} bytes")
        spent = self._clock()
        if now.begun is None:
            now.begun = spent
        if spent - now.begun > bound.seconds:
            raise TooMuch(f"it takes more than {bound.seconds:g} s")


def bound_of(context: Mapping[str, Any]) -> Bound:
    """The bound of a rendering of these values."""
    wanted = FUEL_PER_SIZE * size_of(context, BOUNDS[-1].fuel // FUEL_PER_SIZE)
    return next((bound for bound in BOUNDS if bound.fuel >= wanted), BOUNDS[-1])


def size_of(value: Any, most: int) -> int:
    """Characters of all texts in a value and VALUE_SIZE for each value; it stops to count above `most`."""
    size, waiting = 0, [value]
    while waiting and size <= most:
        one = waiting.pop()
        size += VALUE_SIZE
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return size
