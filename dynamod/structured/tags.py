"""Structural tags: free text in which a string like `<function=` begins a part that keeps to a form.

Two notations are read, as vLLM, SGLang and xgrammar have them: the older one with `structures` and `triggers`, and the
newer one with a `format` of nested parts. Either becomes rules of Lark for llguidance.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamod.message.worker import Grammar

from .fields import elements, encoded, excludes, flag, known, listed, number, schema, string, strings
from .lark import Lark, TagError, choice, literal, regex
from .parameters import STYLES, Parameters
from .ways import END, UNKNOWN, Text, Way, behind, free_text, said, whole_behind

TAGS: Final = "structural_tag"
FORMATS = (
    *("any_text", "const_string", "dispatch", "grammar", "json_schema", "optional", "or", "plus", "qwen_xml_parameter"),
    *("regex", "repeat", "sequence", "star", "tag", "tags_with_separator", "triggered_tags"),
)
"""Types of the newer notation that are served."""
_FIRST = (
    *("any_text", "const_string", "grammar", "json_schema", "or", "regex", "sequence", "tag", "tags_with_separator"),
    "triggered_tags",
)
_LATER = {"excludes", "max_chars", "any_order"}
_WAYS = 512
"""Ways in which one part may begin, and what follows it where it is left out."""
_OPENS = {"object": "{", "array": "["}

Ways = Sequence[Way]


class Rules:
    """The rules of one structural tag. Raises TagError.

    `parts`: what is compiled separately, with its place. `later`: workers of the first version with tags do not read
    it: they know `_FIRST` types, and free text that ends with its tag or the answer.
    """

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._lark = Lark()
        self._bounds: frozenset[str] = frozenset()  # the ends of the tag whose content is read
        self._ends: Ways | None = END  # of that tag, or of the answer
        self.parts: list[tuple[str, Grammar]] = []
        self.later = False
        names = {"type", "format", "structures", "triggers"}
        if wrong := sorted(value.keys() - names):
            raise TagError(f".{wrong[0]}", f"it is not known; known are {', '.join(sorted(names))}")
        if value.get("type", TAGS) != TAGS:
            raise TagError(".type", f"it must be {TAGS}")
        if ("format" in value) == ("structures" in value):
            raise TagError("", "it needs either a `format`, or `structures` with `triggers`")
        ways = self._format(value["format"], ".format", END) if "format" in value else self._older(value)
        self.lark = self._lark.text(behind(self._lark, ways))

    def _older(self, value: Mapping[str, Any]) -> Ways:
        triggers = strings(value.get("triggers"), ".triggers")
        tags: list[tuple[str, str, str]] = []
        for place, one in listed(value["structures"], ".structures"):
            known(one, place, ("begin", "schema", "end"))
            body = self._part(Grammar("json", encoded(schema(one.get("schema"), f"{place}.schema"))), f"{place}.schema")
            end = string(one.get("end", ""), f"{place}.end", empty=True)
            tags.append((string(one.get("begin"), f"{place}.begin"), f"{body} {literal(end)}", f"{place}.begin"))
        return self._dispatched(_grouped(triggers, tags, ".triggers"), END, Text(), ".triggers", loop=True)

    def _format(self, value: Any, place: str, ways: Ways) -> Ways:
        """How an answer continues with this part, when it continues in these ways after it."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in FORMATS:
            types = f"it must be an object with a `type`; known are {', '.join(FORMATS)}"
            raise TagError(f"{place}.type" if isinstance(value, dict) else place, types)
        self.later |= kind not in _FIRST or not _LATER.isdisjoint(value)
        self.later |= kind in ("any_text", "triggered_tags") and ways is not self._ends
        made: Ways = list(dict.fromkeys(getattr(self, f"_{kind}")(value, place, ways)))
        if len(made) > _WAYS:
            raise TagError(place, f"an answer may begin here in {len(made)} ways; at most {_WAYS} are allowed")
        return made

    # Each reads a type of the newer notation, as `_format` says.

    def _any_text(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "excludes", "max_chars"))
        most = None if value.get("max_chars") is None else number(value, place, "max_chars")
        return (free_text(self._lark, ways, Text(excludes(value, place), most), place, bounds=self._bounds),)

    def _const_string(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "value"))
        return said(self._lark, string(value.get("value"), f"{place}.value"), ways)

    def _json_schema(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "json_schema", "style", "any_order"))
        style, where = value.get("style", "json"), f"{place}.json_schema"
        if flag(value, place, "any_order"):
            raise TagError(f"{place}.any_order", "it must be false: properties come in their order")
        given = schema(value.get("json_schema"), where)
        if style == "json":
            part = self._part(Grammar("json", encoded(given)), where)
            opens = _OPENS.get(kind, "") if isinstance(kind := given.get("type"), str) else ""
            return (Way(self._then(part, ways), opens=opens),)
        if not isinstance(style, str) or style not in STYLES:
            raise TagError(f"{place}.style", f"it is not served; known are json, {', '.join(STYLES)}")
        self.later = True
        return (Parameters(self._lark, self._part, style, given).ways(given, where, ways),)

    def _qwen_xml_parameter(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "json_schema"))
        return self._json_schema({**value, "style": "qwen_xml"}, place, ways)

    def _grammar(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "grammar"))
        grammar = Grammar("grammar", string(value.get("grammar"), f"{place}.grammar"))
        return (Way(self._then(self._part(grammar, f"{place}.grammar"), ways)),)

    def _regex(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "pattern"))
        pattern = string(value.get("pattern"), f"{place}.pattern")
        part = self._part(Grammar("regex", pattern), f"{place}.pattern")
        return (Way(self._then(part, ways), whole=whole_behind(self._lark, regex(pattern), ways)),)

    def _sequence(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "elements"))
        for where, element in reversed(elements(value, place)):
            ways = self._format(element, where, ways)
        return ways

    def _or(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "elements"))
        return [way for where, one in elements(value, place) for way in self._format(one, where, ways)]

    def _optional(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "content"))
        return [*self._format(value.get("content"), f"{place}.content", ways), *ways]

    def _star(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "content"))
        return self._repeated(value, place, ways, 0, None)

    def _plus(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "content"))
        return self._repeated(value, place, ways, 1, None)

    def _repeat(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "min", "max", "content"))
        least = number(value, place, "min")
        most = None if value.get("max") == -1 else number(value, place, "max", least)
        return self._repeated(value, place, ways, least, most)

    def _tag(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        begin, body, _ = self._tag_parts(value, place, ways)
        return (Way(behind(self._lark, body), begin),) if begin else body

    def _tag_parts(self, value: Any, place: str, ways: Ways) -> tuple[str, Ways, str]:
        """How it begins, what comes after that, and where the beginning is said."""
        known(value, place, ("type", "begin", "content", "end"))
        if value.get("type", "tag") != "tag":
            raise TagError(f"{place}.type", "it must be tag")
        begin, end = string(value.get("begin"), f"{place}.begin", empty=True), value.get("end")
        ends = strings(end, f"{place}.end") if isinstance(end, list) else (string(end, f"{place}.end", empty=True),)
        outer = self._bounds, self._ends
        self._ends = None
        if ends != ("",):
            self._bounds = frozenset(ends)
            rest = behind(self._lark, ways)
            self._ends = ways = [Way(rest, one) for one in dict.fromkeys(ends)]
        content = self._format(value.get("content"), f"{place}.content", ways)
        self._bounds, self._ends = outer
        return begin, content, f"{place}.begin"

    def _triggered_tags(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"))
        triggers = strings(value.get("triggers"), f"{place}.triggers")
        some, first = flag(value, place, "at_least_one"), flag(value, place, "stop_after_first")
        inner = ways if first else UNKNOWN
        found = [self._tag_parts(one, where, inner) for where, one in listed(value.get("tags"), f"{place}.tags")]
        tags = [(begin, behind(self._lark, body), where) for begin, body, where in found]
        grouped = _grouped(triggers, tags, f"{place}.triggers")
        kind = Text(excludes(value, place))
        return self._dispatched(grouped, ways, kind, f"{place}.triggers", some=some, loop=not first)

    def _dispatch(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "rules", "loop", "excludes"))
        loop, kind = flag(value, place, "loop", default=True), Text(excludes(value, place))
        found: dict[str, list[str]] = {}
        for where, rule in listed(value.get("rules"), f"{place}.rules"):
            if not isinstance(rule, list) or len(rule) != 2:
                raise TagError(where, "it must be a list of a string and a format")
            body = self._format(rule[1], f"{where}[1]", UNKNOWN if loop else ways)
            found.setdefault(string(rule[0], f"{where}[0]"), []).append(behind(self._lark, body))
        return self._dispatched(found, ways, kind, f"{place}.rules", loop=loop)

    def _tags_with_separator(self, value: Mapping[str, Any], place: str, ways: Ways) -> Ways:
        known(value, place, ("type", "tags", "separator", "at_least_one", "stop_after_first"))
        some, first = flag(value, place, "at_least_one"), flag(value, place, "stop_after_first")
        separator = literal(string(value.get("separator"), f"{place}.separator", empty=True))
        tags = [
            way
            for where, one in listed(value.get("tags"), f"{place}.tags")
            for way in self._tag(one, where, ways if first else UNKNOWN)
        ]
        if first:
            return tags if some else [*tags, *ways]
        more = f"({separator} {self._lark.rule(choice(way.expression for way in tags))})*"
        return self._begun(tags, self._then(more, ways), ways, some=some)

    # Pieces of these.

    def _dispatched(
        self, bodies: Mapping[str, Sequence[str]], ways: Ways, kind: Text, place: str, *, loop: bool, some: bool = False
    ) -> Ways:
        """Free text in which each string begins one of its bodies. `some`: one comes at once. `loop`: more may."""
        lark = self._lark
        begun = [Way(lark.short(choice(found)), string) for string, found in bodies.items()]
        if not loop:
            return begun if some else (free_text(lark, [*begun, *ways], kind, place, bounds=self._bounds),)
        text = free_text(lark, ways, kind, place, again=begun, bounds=self._bounds)
        return self._begun(begun, text.rest, ways, some=True) if some else (text,)

    def _repeated(self, value: Mapping[str, Any], place: str, ways: Ways, least: int, most: int | None) -> Ways:
        """The content, so many times (`most` None: any number)."""
        content = self._format(value.get("content"), f"{place}.content", UNKNOWN)
        if most == 0:
            return ways
        one = self._lark.rule(choice(way.expression for way in content))
        more = f"{one}{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return self._begun(content, self._then(more, ways), ways, some=least > 0)

    def _begun(self, ways: Ways, rest: str, others: Ways, *, some: bool) -> Ways:
        """The ways and what follows them; or, where not `some`, others."""
        rest = self._lark.short(rest)
        found = [Way(f"{self._lark.short(way.rest)} {rest}".strip(), way.said, way.opens) for way in ways]
        return found if some else [*found, *others]

    def _then(self, first: str, ways: Ways) -> str:
        return f"{first} {behind(self._lark, ways)}".strip()

    def _part(self, grammar: Grammar, place: str) -> str:
        self.parts.append((place, grammar))
        return f"@part{len(self.parts) - 1}"


def _grouped(triggers: Sequence[str], tags: Sequence[tuple[str, str, str]], place: str) -> dict[str, list[str]]:
    """What follows each trigger. `tags`: how each begins, what follows that, and where it is said. Raises TagError."""
    bodies: dict[str, list[str]] = {trigger: [] for trigger in triggers}
    for begin, body, where in tags:
        found = [trigger for trigger in triggers if begin.startswith(trigger)]
        if len(found) != 1:
            none = "none of the triggers begins it" if not found else f"it begins with {len(found)} triggers"
            raise TagError(where, none)
        bodies[found[0]].append(f"{literal(begin.removeprefix(found[0]))} {body}".strip())
    for index, trigger in enumerate(triggers):
        if not bodies[trigger]:
            raise TagError(f"{place}[{index}]", "no tag begins with it")
    return bodies
