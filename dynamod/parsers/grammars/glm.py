"""A name, then keys and values in tags of their own: GLM, and the families that write the same with other tags."""

from functools import lru_cache
from typing import ClassVar

from ..calls import Calls
from ..reader import Ended, Malformed, Reader, Steps
from ..typed import kinds, member, typed_as
from ..writing import Parameter, Writing
from .base import Grammar
from .json_calls import json_calls
from .parameters import Parameters, Stops, tagged


class Glm(Grammar):
    """`<tool_call>f<arg_key>p</arg_key><arg_value>value</arg_value></tool_call>`, with or without line breaks.

    `call`, `call_end`: around a call; other openings are around several. `separator`: may follow the name.
    `key`, `key_end`, `value`, `value_end`: around a key and its value; an empty `key_end`: a key ends where its value
    begins. `kind_begin`, `kind_end`: around the value's type, which may stand between the two; empty: none does.
    """

    writing = Writing(
        "<tool_call>{name}\n",
        "</tool_call>",
        Parameter("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"),
        between="\n",
    )
    openings: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closings: ClassVar[tuple[str, ...]] = ("</tool_call>", "</arg_key>", "</arg_value>", "<arg_key>", "<arg_value>")
    call: ClassVar[str] = "<tool_call>"
    call_end: ClassVar[str] = "</tool_call>"
    separator: ClassVar[str] = ""
    key: ClassVar[str] = "<arg_key>"
    key_end: ClassVar[str] = "</arg_key>"
    value: ClassVar[str] = "<arg_value>"
    value_end: ClassVar[str] = "</arg_value>"
    kind_begin: ClassVar[str] = ""
    kind_end: ClassVar[str] = ""

    def __init__(self, reader: Reader, calls: Calls) -> None:
        super().__init__(reader, calls)
        self._stops = self.stops()

    def read(self, opening: str) -> Steps[None]:
        """One call, perhaps after the marker of several."""
        self.calls.begin()
        if opening != self.call:
            yield from self.reader.expect(self.call)
        yield from self.body()

    def body(self) -> Steps[None]:
        """The call after its marker, and its end."""
        name, stop = yield from self.name(*filter(None, (self.separator, self.key, self.call_end)))
        parameters = Parameters(self.calls, name)
        if stop == self.separator:
            stop = yield from self._next(parameters)
        while stop == self.key:
            yield from self._pair(parameters)
            stop = yield from self._next(parameters)
        parameters.done()

    def _next(self, parameters: Parameters) -> Steps[str]:
        """The marker of a key or of the call's end."""
        try:
            return (yield from self.reader.expect(self.key, self.call_end))
        except Ended:
            raise parameters.unclosed() from None

    def _pair(self, parameters: Parameters) -> Steps[None]:
        """A key and its value."""
        reader, kind = self.reader, ""
        key, marker = yield from self._word(self.key_end, self.value, self.kind_begin)
        if marker == self.key_end:
            marker = yield from reader.expect(*filter(None, (self.value, self.kind_begin)))
        if marker != self.value:
            kind, marker = yield from self._word(self.kind_end, self.value)
            if marker != self.value:
                yield from reader.expect(self.value)
        key, schema = key.strip(), parameters.schema
        text = yield from tagged(reader, self.calls, self._stops, parameters.string(key))
        if kind and not kinds(member(schema, key, schema), schema):
            parameters.add_json(key, typed_as(text, {"type": kind.partition("[")[0].strip().lower()}, schema))
        else:
            parameters.add(key, text)

    def _word(self, *ends: str) -> Steps[tuple[str, str]]:
        """A key or a type, and which of `ends` comes after it. Raises Malformed where another marker comes first."""
        text, stop = yield from self.reader.until(*ends, self.key, self.call_end, *self.openings)
        if stop not in ends:
            self.reader.back(stop)
            raise Malformed
        return text, stop

    @classmethod
    def stops(cls) -> Stops:
        """What ends a value."""
        inner = (cls.key, cls.value)
        others = {*inner, cls.key_end, cls.value_end, cls.kind_begin, cls.kind_end, cls.separator}
        outer = tuple(word for word in (*cls.closings, *cls.openings) if word not in others)
        return Stops(cls.value_end, inner, inner, outer)


class Iquest(Glm):
    """The same between `<iquest_tool_call>` and `</iquest_tool_call>`."""

    writing = Glm.writing._replace(begin="<iquest_tool_call>{name}\n", end="</iquest_tool_call>")
    openings = ("<iquest_tool_call>",)
    closings = ("</iquest_tool_call>", *Glm.closings[1:])
    call, call_end = "<iquest_tool_call>", "</iquest_tool_call>"


class Hunyuan(Glm):
    """`<tool_calls><tool_call>f<tool_sep><arg_key>p</arg_key><arg_value>value</arg_value></tool_call></tool_calls>`.

    Version 4 has no separator. Checkpoints may have a suffix in all tags: `<tool_calls:opensource>`.
    """

    writing = Writing(
        "<tool_call>{name}<tool_sep>\n", "</tool_call>\n", Glm.writing.parameter, "<tool_calls>\n", "</tool_calls>"
    )
    openings = ("<tool_calls>", "<tool_call>")
    closings = ("</tool_calls>", "<tool_sep>", *Glm.closings)
    separator = "<tool_sep>"
    suffixes = True

    @classmethod
    def suffixed(cls, suffix: str) -> type[Grammar]:
        """The grammar with this suffix in its tags."""
        return _hunyuan(suffix) if suffix else cls


@lru_cache(maxsize=16)
def _hunyuan(suffix: str) -> type[Grammar]:
    def tag(word: str) -> str:
        return word.replace(">", f"{suffix}>")

    words = ("call", "call_end", "separator", "key", "key_end", "value", "value_end")
    markers = {word: tag(getattr(Hunyuan, word)) for word in words}
    sets = {"openings": tuple(map(tag, Hunyuan.openings)), "closings": tuple(map(tag, Hunyuan.closings))}
    return type("Hunyuan", (Hunyuan,), {**markers, **sets})


class K2Horizon(Glm):
    """`<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>p</ifm|arg_key><ifm|arg_value>value</ifm|arg_value>...`.

    The type may stand between key and value (`<ifm|arg_type>integer</ifm|arg_type>`), and a call may be a JSON object.
    """

    writing = Writing(
        "<ifm|tool_call>{name}\n",
        "</ifm|tool_call>\n",
        Parameter("<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>", "</ifm|arg_value>\n"),
        "<ifm|tool_calls>\n",
        "</ifm|tool_calls>",
    )
    openings = ("<ifm|tool_calls>", "<ifm|tool_call>")
    closings = (
        *("</ifm|tool_calls>", "</ifm|tool_call>", "<ifm|arg_key>", "</ifm|arg_key>"),
        *("<ifm|arg_type>", "</ifm|arg_type>", "<ifm|arg_value>", "</ifm|arg_value>"),
    )
    call, call_end = "<ifm|tool_call>", "</ifm|tool_call>"
    key, key_end = "<ifm|arg_key>", "</ifm|arg_key>"
    value, value_end = "<ifm|arg_value>", "</ifm|arg_value>"
    kind_begin, kind_end = "<ifm|arg_type>", "</ifm|arg_type>"

    def body(self) -> Steps[None]:
        """The call after its marker."""
        if (yield from self.reader.peek()) in "{[":
            yield from json_calls(self.reader, self.calls)
        else:
            yield from super().body()


class Solar(Glm):
    """`<|tool_call:start|>f`, `<|tool_arg:start|>p<|tool_arg:value|>value<|tool_arg:end|>`, `<|tool_call:end|>`."""

    writing = Writing(
        "<|tool_call:start|>{name}\n",
        "<|tool_call:end|>",
        Parameter("<|tool_arg:start|>{key}<|tool_arg:value|>", "<|tool_arg:end|>\n"),
        between="\n",
    )
    openings = ("<|tool_call:start|>",)
    closings = ("<|tool_call:end|>", "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>")
    call, call_end = "<|tool_call:start|>", "<|tool_call:end|>"
    key, key_end = "<|tool_arg:start|>", ""
    value, value_end = "<|tool_arg:value|>", "<|tool_arg:end|>"
