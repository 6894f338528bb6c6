"""Structural tags: free text in which a string like `<function=` begins a part that keeps to a form.

Two notations are read, as vLLM, SGLang and xgrammar have them: the older one with `structures` and `triggers`, and the
newer one with a `format` of nested parts. Either becomes rules of Lark for llguidance.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamod.message.worker import Grammar

TAGS: Final = "structural_tag"
FORMATS = (
    *("any_text", "const_string", "grammar", "json_schema", "or", "regex", "sequence", "tag", "tags_with_separator"),
    "triggered_tags",
)
"""Types of the newer notation that are served."""
_TEXT = "(?s:.*)"
_PIECES = 2000
"""Rules of one grammar."""
_STRINGS = 128
"""Triggers of one part, or ends of one tag."""


class TagError(ValueError):
    """`place`: of the part that cannot be had, as a path like `.format.elements[0]`."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(why)
        self.place = place


class Rules:
    """The rules of one structural tag. `parts`: what is compiled by itself, with its place. Raises TagError."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._rules: list[str] = []
        self._known: dict[tuple[str, ...], str] = {}  # rules that are needed again and again
        self.parts: list[tuple[str, Grammar]] = []
        known = {"type", "format", "structures", "triggers"}
        if wrong := sorted(value.keys() - known):
            raise TagError(f".{wrong[0]}", f"it is not known; known are {', '.join(sorted(known))}")
        if value.get("type", TAGS) != TAGS:
            raise TagError(".type", f"it must be {TAGS}")
        if ("format" in value) == ("structures" in value):
            raise TagError("", "it needs either a `format`, or `structures` with `triggers`")
        if "format" in value:
            start = self._format(value["format"], ".format", None)
        else:
            start = self._older(value)
        self.lark = "\n".join((f"start: {start}", *self._rules))

    def _older(self, value: Mapping[str, Any]) -> str:
        triggers = _strings(value.get("triggers"), ".triggers")
        tags: list[tuple[str, str, str]] = []
        for place, one in _listed(value["structures"], ".structures"):
            _known(one, place, ("begin", "schema", "end"))
            body = self._part(Grammar("json", _schema(one.get("schema"), f"{place}.schema")), f"{place}.schema")
            end = _text(one.get("end", ""), f"{place}.end", empty=True)
            tags.append((_text(one.get("begin"), f"{place}.begin"), f"{body} {_literal(end)}", f"{place}.begin"))
        return self._triggered(triggers, tags, None, ".triggers")

    def _format(self, value: Any, place: str, ends: Sequence[str] | None) -> str:
        """An expression of Lark. `ends`: it takes one of these behind it, too; None: the answer ends behind it."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in FORMATS:
            known = f"it must be an object with a `type`; known are {', '.join(FORMATS)}"
            raise TagError(f"{place}.type" if isinstance(value, dict) else place, known)
        made: str = getattr(self, f"_{kind}")(value, place, ends)
        return made

    # Each reads a type of the newer notation, as `_format` says.

    def _any_text(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type",))
        return self._free(ends, place)

    def _const_string(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "value"))
        return f"{_literal(_text(value.get('value'), f'{place}.value'))} {self._behind(ends)}"

    def _json_schema(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "json_schema", "style"))
        if value.get("style", "json") != "json":
            raise TagError(f"{place}.style", "only json is served")
        schema = Grammar("json", _schema(value.get("json_schema"), f"{place}.json_schema"))
        return f"{self._part(schema, f'{place}.json_schema')} {self._behind(ends)}"

    def _grammar(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "grammar"))
        grammar = Grammar("grammar", _text(value.get("grammar"), f"{place}.grammar"))
        return f"{self._part(grammar, f'{place}.grammar')} {self._behind(ends)}"

    def _regex(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "pattern"))
        pattern = Grammar("regex", _text(value.get("pattern"), f"{place}.pattern"))
        return f"{self._part(pattern, f'{place}.pattern')} {self._behind(ends)}"

    def _sequence(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "elements"))
        elements = _elements(value, place)
        made = [self._format(element, where, ()) for where, element in elements[:-1]]
        made.append(self._format(elements[-1][1], elements[-1][0], ends))
        return " ".join(made)

    def _or(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "elements"))
        made = [self._format(one, where, ends) for where, one in _elements(value, place)]
        return f"({' | '.join(made)})"

    def _tag(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        begin, body, _ = self._tag_parts(value, place)
        return f"{_literal(begin)} {body} {self._behind(ends)}"

    def _tag_parts(self, value: Any, place: str) -> tuple[str, str, str]:
        """How it begins, the expression behind that, and where the beginning is said."""
        if not isinstance(value, dict):
            raise TagError(place, "it must be an object")
        _known(value, place, ("type", "begin", "content", "end"))
        if value.get("type", "tag") != "tag":
            raise TagError(f"{place}.type", "it must be tag")
        end = value.get("end")
        ends = _strings(end, f"{place}.end") if isinstance(end, list) else (_text(end, f"{place}.end", empty=True),)
        begin = _text(value.get("begin"), f"{place}.begin", empty=True)
        return begin, self._format(value.get("content"), f"{place}.content", ends), f"{place}.begin"

    def _triggered_tags(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "triggers", "tags", "at_least_one", "stop_after_first"))
        triggers = _strings(value.get("triggers"), f"{place}.triggers")
        tags = [self._tag_parts(one, where) for where, one in _listed(value.get("tags"), f"{place}.tags")]
        some, first = _flag(value, place, "at_least_one"), _flag(value, place, "stop_after_first")
        return self._triggered(triggers, tags, ends, f"{place}.triggers", some=some, first=first)

    def _tags_with_separator(self, value: Mapping[str, Any], place: str, ends: Sequence[str] | None) -> str:
        _known(value, place, ("type", "tags", "separator", "at_least_one", "stop_after_first"))
        tags = [self._tag_parts(one, where) for where, one in _listed(value.get("tags"), f"{place}.tags")]
        one = self._rule(" | ".join(f"{_literal(begin)} {body}" for begin, body, _ in tags))
        separator = _literal(_text(value.get("separator"), f"{place}.separator", empty=True))
        made = one if _flag(value, place, "stop_after_first") else f"{one} ({separator} {one})*"
        return f"{made if _flag(value, place, 'at_least_one') else f'({made})?'} {self._behind(ends)}"

    # Pieces of these.

    def _triggered(
        self,
        triggers: Sequence[str],
        tags: Sequence[tuple[str, str, str]],
        ends: Sequence[str] | None,
        place: str,
        *,
        some: bool = False,
        first: bool = False,
    ) -> str:
        """Free text in which each trigger begins one of the tags that begin with it. `some`: a tag comes at once."""
        bodies: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for begin, body, where in tags:
            found = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(found) != 1:
                none = "none of the triggers begins it" if not found else f"it begins with {len(found)} triggers"
                raise TagError(where, none)
            bodies[found[0]].append(self._rule(f"{_literal(begin.removeprefix(found[0]))} {body}"))
        for index, trigger in enumerate(triggers):
            if not bodies[trigger]:
                raise TagError(f"{place}[{index}]", "no tag begins with it")
        if ends is not None and any(trigger in end or end in trigger for trigger in triggers for end in ends):
            raise TagError(place, "a trigger and the end of the enclosing tag contain one another")
        at_once = " | ".join(f"{_literal(trigger)} ({' | '.join(bodies[trigger])})" for trigger in triggers)
        heads = [self._rule(f"/{_TEXT}{_escaped(trigger)}/", lazy=True) for trigger in triggers]
        later = self._rule(
            " | ".join(f"{head} ({' | '.join(bodies[one])})" for head, one in zip(heads, triggers, strict=True))
        )
        tail = self._free(ends, place)
        if first:
            return f"({at_once}) {self._behind(ends)}" if some else f"({later} {self._behind(ends)} | {tail})"
        return f"({at_once}) {later}* {tail}" if some else f"{later}* {tail}"

    def _free(self, ends: Sequence[str] | None, place: str) -> str:
        """Any text, to the end of the answer or up to one of `ends`, which it has in it."""
        if ends is None:
            return self._rule(f"/{_TEXT}/")
        if "" in ends or not ends:
            raise TagError(place, "nothing says where free text ends here")
        return self._once(("text", *ends), f"/{_TEXT}({'|'.join(map(_escaped, ends))})/", lazy=True)

    def _behind(self, ends: Sequence[str] | None) -> str:
        """One of the ends."""
        said = [_literal(end) for end in ends or () if end]
        return self._once(("end", *said), " | ".join(said)) if said else ""

    def _once(self, key: tuple[str, ...], body: str, *, lazy: bool = False) -> str:
        if key not in self._known:
            self._known[key] = self._rule(body, lazy=lazy)
        return self._known[key]

    def _part(self, grammar: Grammar, place: str) -> str:
        self.parts.append((place, grammar))
        return f"@part{len(self.parts) - 1}"

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        if len(self._rules) >= _PIECES:
            raise TagError("", "it has too many parts")
        name = f"piece{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name


def _known(value: Any, place: str, names: Sequence[str]) -> None:
    if not isinstance(value, dict):
        raise TagError(place, "it must be an object")
    for name in value:
        if name not in names:
            raise TagError(f"{place}.{name}", f"it is not served; known are {', '.join(names)}")


def _listed(value: Any, place: str) -> list[tuple[str, Any]]:
    if not isinstance(value, list) or not value:
        raise TagError(place, "it must be a list that is not empty")
    return [(f"{place}[{index}]", one) for index, one in enumerate(value)]


def _elements(value: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    return _listed(value.get("elements"), f"{place}.elements")


def _strings(value: Any, place: str) -> tuple[str, ...]:
    if isinstance(value, list) and len(value) > _STRINGS:
        raise TagError(place, f"it has {len(value)} strings; it must have at most {_STRINGS}")
    return tuple(_text(one, where) for where, one in _listed(value, place))


def _text(value: Any, place: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise TagError(place, "it must be a string" if empty else "it must be a string that is not empty")
    return value


def _schema(value: Any, place: str) -> str:
    if value is True:
        return "{}"
    if not isinstance(value, dict):
        raise TagError(place, "it must be a JSON Schema, which is an object")
    return json.dumps(value)


def _flag(value: Mapping[str, Any], place: str, name: str) -> bool:
    given = value.get(name, False)
    if not isinstance(given, bool):
        raise TagError(f"{place}.{name}", "it must be true or false")
    return given


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _escaped(text: str) -> str:
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)
