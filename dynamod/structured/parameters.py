"""Parameters of a call as models write them between tags, instead of one JSON object: by the schema of that object.

The names of the styles, and what they look like, are xgrammar's. Strings stand as they are, up to the closing tag; what
is no string is JSON, but in `cohere_xml`, where objects and lists are tags within tags.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dynamod.message.worker import Grammar

from .fields import encoded, known, number, schema
from .lark import WHITESPACE, Lark, TagError, choice, escaped
from .values import DICT, JSON, LIST, NOTES, RAW, Part, Value, members, resolved, values
from .ways import Way

_LISTS = ("type", "items", "minItems", "maxItems")
_NAME = r"/[a-zA-Z_][a-zA-Z0-9_]*/"
_DEEP = 16
"""Objects and lists of `cohere_xml` within each other."""


class _Style(NamedTuple):
    """What stands in front of a name, after it (by kind of value), and after the value.

    `between`: in front of the value, where white space may come before it. `item`: what begins a part of a list.
    """

    before: str
    behind: Mapping[str, str]
    close: str
    between: str = ""
    item: str = ""


def _same(text: str) -> Mapping[str, str]:
    return {RAW: text, JSON: text}


def _typed(**types: str) -> Mapping[str, str]:
    return {kind: f'" type="{name}">' for kind, name in types.items()}


STYLES = {
    "qwen_xml": _Style("<parameter=", _same(">"), "</parameter>"),
    "minimax_xml": _Style('<parameter name="', _same('">'), "</parameter>"),
    "deepseek_xml": _Style(
        '<｜DSML｜parameter name="', {RAW: '" string="true">', JSON: '" string="false">'}, "</｜DSML｜parameter>"
    ),
    "glm_xml": _Style("<arg_key>", _same("</arg_key>"), "</arg_value>", "<arg_value>"),
    "cohere_xml": _Style(
        '<cofl:value name="',
        _typed(**{RAW: "raw", JSON: "json", DICT: "dict", LIST: "list"}),
        "</cofl:value>",
        item="<cofl:value",
    ),
}


class Parameters:
    """The parameters of one schema. `part`: makes what is compiled on its own, by its place. `root`: of the schema."""

    def __init__(self, lark: Lark, part: Part, style: str, root: Mapping[str, Any]) -> None:
        self._lark, self._part, self._root = lark, part, root
        self._style, self._called = STYLES[style], style
        self._close = f"/{WHITESPACE}{escaped(self._style.close)}/"

    def ways(self, given: Mapping[str, Any], place: str, ways: Sequence[Way]) -> Way:
        """All parameters with these ways after them. Raises TagError for what the style cannot say."""
        return Way(self._object(resolved(given, self._root, place), place, ways, 0))

    def _object(self, given: Mapping[str, Any], place: str, ways: Sequence[Way], depth: int) -> str:
        """Properties in their order, then others, then what follows: white space in front of that is part of it."""
        if depth > _DEEP:
            raise TagError(place, f"it has more than {_DEEP} objects and lists within each other, or refers to itself")
        properties, required, others = members(given, place, self._called)
        found = []
        for name, one in properties.items():
            where = f"{place}.properties.{name}"
            made = self._lark.rule(self._property(escaped(name), schema(one, where), where, depth))
            found.append(made if name in required else f"{made}?")
        if others is not None:
            names = f"({_NAME} & ~/{'|'.join(map(escaped, properties))}/)" if properties else _NAME
            where = f"{place}.additionalProperties"
            found.append(f"{self._lark.rule(self._property(names, others, where, depth, named=False))}*")
        return f"{' '.join(found)} {choice(self._end(way) for way in ways)}".strip()

    def _end(self, way: Way) -> str:
        if way.said:
            return f"{self._lark.terminal(f'/{WHITESPACE}{escaped(way.said)}/')} {way.rest}".strip()
        return way.expression or self._lark.terminal(f"/{WHITESPACE}/")

    def _property(self, name: str, given: Mapping[str, Any], place: str, depth: int, *, named: bool = True) -> str:
        """`name`: a regular expression; not `named`: one of Lark."""
        before = escaped(self._style.before)

        def head(kind: str, spaces: str) -> str:
            after = escaped(self._style.behind[kind])
            if self._style.between:
                after += WHITESPACE + escaped(self._style.between)
            if named:
                return f"/{WHITESPACE}{before}{name}{after}{spaces}/"
            return f"/{WHITESPACE}{before}/ {name} /{after}{spaces}/"

        return self._valued(head, given, place, depth)

    def _valued(self, head: Callable[[str, str], str], given: Mapping[str, Any], place: str, depth: int) -> str:
        """A value in each of its forms, from its opening tag to its closing one. `head(kind, spaces)`: the former."""
        separate = self._style.behind[RAW] != self._style.behind[JSON]
        found = []
        for value in values(given, self._root, place, self._part, nested=DICT in self._style.behind, separate=separate):
            spaces = "" if value.text or value.kind == RAW else WHITESPACE
            found.append(f"{self._lark.terminal(head(value.kind, spaces))} {self._body(value, place, depth)}")
        return choice(found)

    def _body(self, value: Value, place: str, depth: int) -> str:
        """A value and the closing tag."""
        lark, close = self._lark, self._style.close
        if value.text:
            without = f"/(?s:.*)/ & ~/(?s:.*){escaped(close)}(?s:.*)/"
            return lark.terminal(f"/{WHITESPACE}/ ({value.text} & {without}) {self._close}")
        if value.kind == RAW:
            return lark.lazy(f"/(?s:.*){escaped(close)}/")
        if value.kind == DICT:
            return self._object(value.given, place, (Way("", close),), depth + 1)
        if value.kind == LIST:
            return self._list(value.given, place, depth + 1)
        shared = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        part = self._part(Grammar("json", encoded({**shared, **value.given})), place)
        return f"{part} {lark.terminal(self._close)}"

    def _list(self, given: Mapping[str, Any], place: str, depth: int) -> str:
        if depth > _DEEP:
            raise TagError(place, f"it has more than {_DEEP} objects and lists within each other, or refers to itself")

        def head(kind: str, spaces: str) -> str:
            kinds = self._style.behind[kind].removeprefix('"')
            return f"/{WHITESPACE}{escaped(self._style.item + kinds)}{spaces}/"

        known({name: one for name, one in given.items() if name not in NOTES}, place, _LISTS)
        where = f"{place}.items"
        one = self._lark.rule(self._valued(head, schema(given.get("items", True), where), where, depth))
        least = number(given, place, "minItems") if "minItems" in given else 0
        most = number(given, place, "maxItems", least) if "maxItems" in given else ""
        return f"{one}{{{least},{most}}} {self._lark.terminal(self._close)}"
