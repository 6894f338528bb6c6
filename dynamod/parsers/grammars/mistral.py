"""`[TOOL_CALLS]`: a list of JSON calls, or since 2025 names with arguments."""

from typing import ClassVar

from ..calls import Identify, short_id
from ..reader import Steps
from ..writing import written_json
from .base import Grammar
from .json_calls import arguments, json_calls


class Mistral(Grammar):
    """`[TOOL_CALLS][{...}]`, `[TOOL_CALLS]name[ARGS]{...}`, `[TOOL_CALLS]name{...}`, perhaps with `[CALL_ID]id`."""

    writing = written_json("[TOOL_CALLS][", "]", ", ")
    quoted = True
    openings = ("[TOOL_CALLS]",)
    closings = ("[ARGS]", "[CALL_ID]", "</s>")
    ends = ("</s>", "[TOOL_CALLS]")
    identify: ClassVar[Identify] = staticmethod(short_id)

    def read(self, opening: str) -> Steps[None]:
        """The calls after one marker."""
        reader, calls = self.reader, self.calls
        if (yield from reader.peek()) in "[{":
            yield from json_calls(reader, calls)
            return
        calls.begin()
        name, stop = yield from self.name("[ARGS]", "[CALL_ID]", "{")
        given = ""
        if stop == "[CALL_ID]":
            given, stop = yield from self.name("[ARGS]", "{")
        if stop == "{":
            reader.back("{")
        calls.start(name, given)
        yield from arguments(reader, calls)
