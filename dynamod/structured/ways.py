"""Free text in an answer, which ends where what follows it begins.

llguidance reads an answer from left to right and takes as much as it can for each terminal, so a terminal of free text
has in it how it ends: at the first of some strings, in front of a character, or with the answer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .lark import Lark, TagError, choice, escaped, literal

_STRINGS = 128
"""Strings that may end one free text."""
_JOINED, _FEW = 200, 4
"""Characters of a string that is known to follow, and ways up to which it is made longer for each."""


@dataclass(frozen=True, slots=True)
class Text:
    """A kind of free text. `excludes`: strings that are not in it. `most`: its characters; None: any number."""

    excludes: frozenset[str] = frozenset()
    most: int | None = None

    def terminal(self, bounds: Collection[str], stops: str) -> str:
        """An expression. `bounds`: more strings that are not in it; `stops`: characters that are not."""
        times = "*" if self.most is None else f"{{0,{self.most}}}"
        without = [escaped(one) for one in sorted({*self.excludes, *bounds, *stops})]
        free = f"/(?s:.{times})/"
        return f"({free} & ~/(?s:.*)({'|'.join(without)})(?s:.*)/)" if without else free


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which an answer may continue: a string, `said`, and after that `rest`, an expression of Lark.

    `opens`: the character with which `rest` begins, where that is known. `whole`: all to the end of the answer as an
    expression of a terminal, where there is one. `free`: it begins with free text.
    """

    rest: str
    said: str = ""
    opens: str = ""
    whole: str | None = None
    free: Text | None = None

    @property
    def expression(self) -> str:
        """All of it."""
        return f"{literal(self.said)} {self.rest}".strip()


END = (Way("", whole=""),)
"""The answer ends."""
UNKNOWN = (Way(""),)
"""What follows is not known here."""


def behind(lark: Lark, ways: Sequence[Way]) -> str:
    """An expression of what follows, to be written after something else. Raises TagError."""
    return lark.short(choice(way.expression for way in ways))


def whole_behind(lark: Lark, first: str, ways: Sequence[Way]) -> str | None:
    """`Way.whole` of an expression with these ways after it. Raises TagError."""
    wholes = [way.whole for way in ways]
    found = [one for one in wholes if one is not None]
    if len(found) < len(wholes):
        return None
    return lark.short(f"{first} {choice(found)}".strip(), terminal=True)


def said(lark: Lark, text: str, ways: Sequence[Way]) -> tuple[Way, ...]:
    """A string with these ways after it. Raises TagError."""
    if len(ways) <= _FEW and all(way.said and len(way.said) + len(text) <= _JOINED for way in ways):
        return tuple(Way(way.rest, text + way.said, whole=whole_behind(lark, literal(text), (way,))) for way in ways)
    return (Way(behind(lark, ways), text, whole=whole_behind(lark, literal(text), ways)),)


def free_text(
    lark: Lark,
    ways: Sequence[Way],
    kind: Text,
    place: str,
    *,
    again: Sequence[Way] = (),
    bounds: Collection[str] = (),
) -> Way:
    """Free text with these ways after it. `again`: ways after which free text begins once more.

    `bounds`: strings that are not in it, for they end what it is a part of. Raises TagError, which names `place`.
    """
    if kind.most is None and all(way.free == kind for way in ways):
        tail, stops = behind(lark, ways), ""
    elif any(not (way.said or way.opens or way.whole is not None) for way in ways):
        raise TagError(
            place, "nothing says where free text ends here: what follows it must begin with a certain string"
        )
    else:
        tail, stops = "", "".join(sorted({way.opens for way in ways}))
    ends = [way for way in ways if way.said and way.whole is None]
    _check(ends, again, place)
    text = kind.terminal({*bounds} - {way.said for way in ways}, stops)
    heads = _heads(lark, text, again)
    loop = f"{lark.rule(' | '.join(heads))}* " if heads else ""
    if tail:
        return Way(loop + tail, free=kind)
    wholes = [way.whole for way in ways if way.whole is not None]
    tails = _heads(lark, text, ends)
    tails += [f"{lark.terminal(text)} {way.rest}" for way in ways if way.opens]
    if wholes:
        last = choice(wholes)
        whole = lark.terminal(f"{text} {last}".strip())
        tails.append(whole)
        if not heads and len(tails) == 1:
            return Way(whole, whole=whole, free=kind)
    return Way(loop + lark.short(choice(tails)), free=kind)


def _heads(lark: Lark, text: str, ways: Sequence[Way]) -> list[str]:
    """Free text up to one of the strings, and what follows that."""
    rests: dict[str, list[str]] = {}
    for way in ways:
        rests.setdefault(way.said, []).append(way.rest)
    strings: dict[str, list[str]] = {}
    for string, following in rests.items():
        strings.setdefault(choice(following), []).append(string)
    return [
        f"{lark.lazy(f'{text} /{chr(124).join(map(escaped, together))}/')} {rest}".strip()
        for rest, together in strings.items()
    ]


def _check(ends: Sequence[Way], again: Sequence[Way], place: str) -> None:
    """Strings after which different things follow are told apart before one has come to its end."""
    strings: dict[str, set[str]] = {}
    for way in (*ends, *again):
        strings.setdefault(way.said, set()).add(way.rest)
    if len(strings) > _STRINGS:
        raise TagError(place, f"{len(strings)} strings may end free text here; at most {_STRINGS} may")
    for one, rests in strings.items():
        for other, others in strings.items():
            if one != other and one in other and not (len(rests) == 1 and rests == others):
                why = f"strings that end free text contain one another: {one[:40]!r}, {other[:40]!r}"
                raise TagError(place, why)
