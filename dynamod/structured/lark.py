"""Rules of a Lark grammar for llguidance, while a form is read: names, terminals, and where something is wrong."""

import json
from collections.abc import Iterable

WHITESPACE = r"[ \n\t]{0,24}"
"""Between the parts of a JSON value, and between tags: without a bound, small models write white space forever."""
_PIECES = 2000
"""Rules of one grammar."""
_SIZE = 2**19
"""Characters of all of them."""
_LONG = 200
"""Characters of an expression that is written out at each place where it is needed."""


class TagError(ValueError):
    """`place`: of the part that cannot be had, as a path like `.format.elements[0]`."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(why)
        self.place = place


class Lark:
    """Rules, each made once. A terminal is an expression of regular expressions and strings, with `&` and `~`."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}  # name by what follows it
        self._size = 0

    def text(self, start: str) -> str:
        """The grammar whose answer is `start`."""
        return "\n".join((f"start: {start}", *(f"{name}{body}" for body, name in self._known.items())))

    def rule(self, body: str) -> str:
        """The name of a rule. Raises TagError when there are too many."""
        return self._name(f": {body}", "piece")

    def terminal(self, body: str) -> str:
        """The name of a terminal, which takes as much as it can. Raises TagError."""
        return self._name(f": {body}", "PIECE")

    def lazy(self, body: str) -> str:
        """The name of a terminal that takes as little as it can. Raises TagError."""
        return self._name(f"[lazy]: {self.terminal(body)}", "piece")

    def short(self, body: str, *, terminal: bool = False) -> str:
        """The expression, or the name of a rule where it is long. Raises TagError."""
        if len(body) <= _LONG:
            return body
        return self.terminal(body) if terminal else self.rule(body)

    def _name(self, body: str, kind: str) -> str:
        name = self._known.get(body)
        if name is None:
            self._size += len(body)
            if len(self._known) >= _PIECES or self._size > _SIZE:
                raise TagError("", "it has too many parts")
            name = self._known[body] = f"{kind}{len(self._known)}"
        return name


def literal(text: str) -> str:
    """A string of Lark; nothing for an empty one."""
    return json.dumps(text) if text else ""


def escaped(text: str) -> str:
    """A string in a regular expression."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


def regex(pattern: str) -> str:
    """A regular expression of Lark."""
    found: list[str] = []
    behind = False  # a backslash
    for letter in pattern:
        written = {"\n": "\\n", "/": "/" if behind else "\\/"}.get(letter, letter)
        found.append(written[1:] if behind and letter == "\n" else written)
        behind = letter == "\\" and not behind
    return f"/{''.join(found)}/"


def choice(bodies: Iterable[str]) -> str:
    """One of the expressions; an empty one may be left out."""
    different = list(dict.fromkeys(bodies))
    some = [body for body in different if body]
    if not some:
        return ""
    return f"({' | '.join(some)}){'?' if '' in different else ''}" if len(different) > 1 else some[0]
