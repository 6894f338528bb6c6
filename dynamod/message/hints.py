"""Phrases of error messages: names, near names, what a value is, what msgspec says of one; text that is encodable."""

import difflib
import re
from collections.abc import Iterable

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")


def names(known: Iterable[str]) -> str:
    """`a, b, c` in sorted order, or `none`."""
    return ", ".join(sorted(set(known))) or "none"


def closest(name: str, known: Iterable[str]) -> str:
    """The one of `known` that looks like `name`, or nothing."""
    table = {other.replace("-", "_").lower(): other for other in known}
    found = difflib.get_close_matches(name.replace("-", "_").lower(), table, n=1, cutoff=0.7)
    return table[found[0]] if found else ""


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` when one of `known` looks like `name`, else nothing."""
    found = closest(name, known)
    return f"did you mean '{found}'? " if found else ""


def known_hint(name: str, known: Iterable[str], what: str = "known keys") -> str:
    """The hint of an unknown name: the near one first, then all."""
    known = list(known)
    return f"{near(name, known)}{what}: {names(known)}"


def kind(value: object) -> str:
    """What a value is, as YAML calls it rather than Python."""
    for types, word in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (dict, "a mapping"),
        (list, "a list"),
        (type(None), "empty"),
    ):
        if isinstance(value, types):
            return word
    return f"a {type(value).__name__}"


def refusal(error: Exception) -> tuple[str, str, str]:
    """Of a `msgspec.ValidationError`: the value's path (`a.b[0]`, or empty), the sentence, a field that is missing."""
    text = str(error)
    place = _PLACE.search(text)
    missing = _MISSING.match(text)
    return place[1] if place else "", text[: place.start()] if place else text, missing[1] if missing else ""


def in_words(sentence: str, value: object) -> str:
    """A sentence of msgspec as the end of one of ours: `expected int, got 'x'`. `value`: what it is about."""
    if value is not None and not isinstance(value, dict | list) and sentence.startswith("Expected"):
        sentence = f"{sentence.partition(', got')[0]}, got {value!r}"
    return sentence[:1].lower() + sentence[1:].replace("`", "")


def printable(text: str) -> str:
    """Text that can be encoded: lone surrogates (from paths or engines) become question marks."""
    return text.encode("utf-8", "replace").decode()
