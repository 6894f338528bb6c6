"""Markers: words of a format that are searched in text which comes in pieces."""

import re
from collections.abc import Iterable
from functools import lru_cache


class Markers:
    """A set of words. The earliest is found; of several at one place the longest."""

    __slots__ = ("_begun", "_longest", "_search", "near")

    def __init__(self, words: Iterable[str]) -> None:
        ordered = sorted({word for word in words if word}, key=len, reverse=True)
        self._longest = len(ordered[0]) if ordered else 0
        self._search = re.compile("|".join(map(re.escape, ordered)) or "(?!)").search
        self._begun = re.compile(f"(?:{_beginnings(ordered) or '(?!)'})\\Z").search
        firsts = "".join(sorted({re.escape(word[0]) for word in ordered}))
        self.near = re.compile(f"[{firsts}]" if firsts else "(?!)").search
        """Finds the first character of any word: without one, a text neither holds nor begins a marker."""

    def find(self, text: str, closed: bool) -> tuple[int, str]:
        """Where text ends that is none of a marker's, and the marker there.

        "": there is none, and what follows that place may become one. `closed`: nothing follows any more.
        """
        match, end = self._search(text), len(text)
        if not closed:
            begun = self._begun(text, end - self._longest + 1 if end >= self._longest else 0)
            if begun is not None and (match is None or begun.start() <= match.start()):
                return begun.start(), ""
        return (end, "") if match is None else (match.start(), match[0])


def _beginnings(words: Iterable[str]) -> str:
    """The pattern of the beginnings of words, without the whole words; empty where there are none."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    found = []
    for first, after in rests.items():
        if longer := [rest for rest in after if rest]:
            inner = _beginnings(longer)
            found.append(re.escape(first) + (f"(?:{inner})?" if inner else ""))
    return "|".join(found)


@lru_cache(maxsize=256)
def markers(*words: str) -> Markers:
    """The set of these words, compiled once."""
    return Markers(words)
