"""JSON without markers: the answer itself is a call when it begins with one."""

from typing import ClassVar

from ..reader import Steps, escaped
from ..writing import written_json
from .base import Grammar
from .json_calls import json_calls

_OBJECTS = ('{"name"', '{ "name"', '{"type": "function"', '{"function"')
"""How objects begin that may be calls after text."""
_NEXT = tuple(f";{white}{word}" for white in ("", " ", "\n", escaped("\n")) for word in _OBJECTS)
"""What stands between two calls. No JSON has it: the strings of JSON have a backslash in front of a quote.

Arguments have a line break as `Reader.value` writes it.
"""


class Llama3(Grammar):
    """`{"name": ..., "parameters": {...}}`, several with `;` between them, perhaps after `<|python_tag|>`.

    Without the marker only objects with a tool's name are calls: any other JSON is an answer.
    """

    writing = written_json(between="; ", key="parameters")
    quoted = True
    openings: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    bare = "{["

    @classmethod
    def call_ends(cls) -> tuple[str, ...]:
        """The next call, too."""
        return (*super().call_ends(), *_NEXT)

    def inner_words(self) -> tuple[str, ...]:
        """Objects with a call's keys, and lists of these."""
        return (*_OBJECTS, *(f"[{word}" for word in _OBJECTS))

    def read(self, opening: str) -> Steps[None]:
        """The calls at this place."""
        yield from json_calls(self.reader, self.calls, None if opening else self.calls.tools)


class Default(Llama3):
    """Dynamo's parser for models of no known family: bare JSON, or after the markers of several."""

    writing = written_json("<TOOLCALL>[", "]</TOOLCALL>", ", ")
    openings = ("<TOOLCALL>", "<|python_tag|>", "<tool_call>")
    closings = ("</TOOLCALL>", "</tool_call>")


class Phi4(Llama3):
    """`functools[{...}, {...}]`, or bare JSON."""

    writing = written_json("functools[", "]", ", ")
    openings = ("functools[",)
    weak = True

    def read(self, opening: str) -> Steps[None]:
        """The calls at this place."""
        if opening:
            self.reader.back("[")
        yield from super().read(opening)


class Xlam(Llama3):
    """`[{"name": ..., "arguments": {...}}, ...]`, bare, in a block of code, or after a marker of other formats."""

    writing = written_json("[", "]", ", ")
    openings = ("[TOOL_CALLS]", "<tool_call>")
    closings = ("</tool_call>",)
    bare = "{[`"

    def inner_words(self) -> tuple[str, ...]:
        """Blocks of code, too."""
        return (*super().inner_words(), "```json")

    def read(self, opening: str) -> Steps[None]:
        """The calls at this place."""
        fence = "" if opening else (yield from self.reader.accept("```json", "```"))
        yield from super().read(opening)
        if fence:
            yield from self.reader.accept("```")
