"""Markers: words of a format that are searched in text which comes in pieces."""

import re
from collections.abc import Iterable
from functools import lru_cache


class Markers:
    """A set of words. The earliest is found; of several at one place the longest."""

    __slots__ = ("_longest", "_prefixes", "_search", "near")

    def __init__(self, words: Iterable[str]) -> None:
        ordered = sorted({word for word in words if word}, key=len, reverse=True)
        self._longest = len(ordered[0]) if ordered else 0
        self._prefixes = frozenset(word[:count] for word in ordered for count in range(1, len(word)))
        self._search = re.compile("|".join(map(re.escape, ordered)) or "(?!)").search
        firsts = "".join(sorted({re.escape(word[0]) for word in ordered}))
        self.near = re.compile(f"[{firsts}]" if firsts else "(?!)").search
        """Finds the first character of any word: without one, a text neither holds nor begins a marker."""

    def find(self, text: str, closed: bool) -> tuple[int, str]:
        """Where text ends that is none of a marker's, and the marker there.

        "": there is none, and what follows that place may become one. `closed`: nothing follows any more.
        """
        match = self._search(text)
        if closed:
            return (len(text), "") if match is None else (match.start(), match[0])
        end = len(text)
        start = max(0, end - self._longest + 1)
        while start < end:
            hit = self.near(text, start)
            if hit is None or (match is not None and hit.start() > match.start()):
                break
            start = hit.start()
            if text[start:] in self._prefixes:
                return start, ""
            start += 1
        return (end, "") if match is None else (match.start(), match[0])


@lru_cache(maxsize=256)
def markers(*words: str) -> Markers:
    """The set of these words, compiled once."""
    return Markers(words)
