"""Phrases of error messages: lists of names, near names, what a value is."""

import difflib
from collections.abc import Iterable


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
