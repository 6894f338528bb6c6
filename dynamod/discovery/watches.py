"""What a process watches in the registry: the view of each watch, and the callback for changes."""

from collections.abc import Callable, Iterator

from .base import Watcher


class Watches:
    """`lost(number, keys)`: called with keys that a snapshot has no more. They stay until `expire`: after the loss of a
    daemon the owners of the keys have to come back too.
    """

    def __init__(self, lost: Callable[[int, set[str]], None]) -> None:
        self._lost = lost
        self._watchers: dict[int, tuple[str, Watcher]] = {}
        self._view: dict[int, dict[str, bytes]] = {}
        self._missing: dict[int, set[str]] = {}  # keys of the last snapshot's grace, until their owner is back

    def add(self, prefix: str, watcher: Watcher) -> int:
        """Begin a watch; returns its number."""
        number = len(self._watchers) + 1
        self._watchers[number] = (prefix, watcher)
        self._view[number] = {}
        return number

    def prefixes(self) -> Iterator[tuple[int, str]]:
        """Number and prefix of each watch."""
        return ((number, prefix) for number, (prefix, _) in self._watchers.items())

    def sizes(self) -> dict[str, int]:
        """Number of keys below each prefix."""
        return {prefix: len(self._view[number]) for number, prefix in self.prefixes()}

    def compare(self, number: int, new: dict[str, bytes]) -> None:
        """Take a snapshot."""
        for key, value in new.items():
            self.change(number, key, value)
        missing = {key for key in self._view[number] if key not in new}
        self._missing[number] = missing
        if missing:
            self._lost(number, missing)

    def expire(self, number: int, missing: set[str]) -> None:
        """The keys that `lost` was called with are gone, unless a newer snapshot has decided anew."""
        if self._missing.get(number) is missing:
            for key in sorted(missing):
                self.change(number, key, None)

    def change(self, number: int, key: str, value: bytes | None) -> None:
        """Take a change of a key; None: it was removed."""
        view = self._view[number]
        self._missing.get(number, set()).discard(key)
        if value is None:
            if view.pop(key, None) is None:
                return
        elif view.get(key) == value:
            return
        else:
            view[key] = value
        self._watchers[number][1](key, value)
