"""Kimi K2: a section of calls, each with an id that has the function's name in it."""

from ..reader import Malformed, Steps
from ..writing import Writing
from .base import Grammar
from .json_calls import arguments

_CALL = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_END = "<|tool_call_end|>"


class Kimi(Grammar):
    """`<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""

    writing = Writing(
        f"{_CALL}functions.{{name}}:0{_ARGUMENTS}",
        _END,
        None,
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    )
    quoted = True
    openings = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", _CALL)
    closings = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>", _END, _ARGUMENTS)

    def read(self, opening: str) -> Steps[None]:
        """The calls of one section."""
        reader, calls = self.reader, self.calls
        calls.begin()
        if opening != _CALL:
            yield from reader.expect(_CALL)
        while True:
            calls.begin()
            given, _ = yield from self.name(_ARGUMENTS)
            name = given.rpartition(":")[0] or given
            name = name.removeprefix("functions.")
            if not name:
                raise Malformed
            calls.start(name, given)
            yield from arguments(reader, calls)
            if not (yield from reader.accept(_END)) or not (yield from reader.accept(_CALL)):
                return
