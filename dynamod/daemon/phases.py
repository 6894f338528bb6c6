"""The phases of a process's start (spawn, download, load, warm-up) with the seconds that each took."""

from collections.abc import Callable


class Phases:
    """One phase follows another until `end`. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def begin(self, name: str) -> None:
        """A phase begins, and the one before ends. The phase that runs already continues."""
        if self._current is None or self._current[0] != name:
            self.end()
            self._current = name, self._now()

    def end(self) -> None:
        """The start is over."""
        if self._current is not None:
            name, since = self._current
            self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - since
            self._current = None

    @property
    def current(self) -> str:
        """The phase that runs; empty when none does."""
        return self._current[0] if self._current is not None else ""

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far, in the order of their beginnings."""
        found = dict(self._seconds)
        if self._current is not None:
            name, since = self._current
            found[name] = found.get(name, 0.0) + self._now() - since
        return {name: round(value, 3) for name, value in found.items()}
