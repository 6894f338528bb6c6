"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string in a text given piece by piece; the answer does not depend on where it was cut.

    The match that ends first wins; of matches that end at the same character, the longest one does, so that the most
    is hidden. Text that may be the start of a stop string is held back until the next pieces decide: never more than
    the longest proper prefix of a stop string that the text ends with. `include` shows the stop string itself.
    """

    __slots__ = ("_first", "_held", "_include", "_last", "_longest", "_stops")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        # A held text starts with a first character of a stop string and ends with one that is not its last.
        self._first = frozenset(stop[0] for stop in self._stops)
        self._last = frozenset("".join(stop[:-1] for stop in self._stops))
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to show now and whether a stop string was found (then nothing follows)."""
        if not self._stops:
            return text, False
        if self._held:
            text = self._held + text
        match = self._find(text)
        if match is not None:
            self._held = ""
            start, end = match
            return text[: end if self._include else start], True
        if not text or text[-1] not in self._last:
            self._held = ""
            return text, False
        cut = self._cut(text)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """Return what is held back: the text has ended without the rest of a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        """Start and end of the match that ends first."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[::-1] if found else None

    def _cut(self, text: str) -> int:
        """Where the longest end of `text` begins that is a proper prefix of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first:
                tail = text[start:]
                for stop in self._stops:
                    if len(stop) > len(tail) and stop.startswith(tail):
                        return start
        return len(text)
