"""PLaMo 3: tokens around a section, a request, a name and JSON arguments."""

from ..reader import Steps
from ..writing import Writing
from .base import Grammar
from .json_calls import arguments

_CALLS, _CALLS_END = "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"
_CALL, _CALL_END = "<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>"
_NAME, _NAME_END = "<|plamo:begin_tool_name:plamo|>", "<|plamo:end_tool_name:plamo|>"
_ARGUMENTS, _ARGUMENTS_END = "<|plamo:begin_tool_arguments:plamo|>", "<|plamo:end_tool_arguments:plamo|>"
_CONSTRAIN, _MESSAGE = "<|plamo:constrain|>", "<|plamo:msg|>"


class Plamo(Grammar):
    """Tokens of `tool_requests`, `tool_request`, `tool_name` and `tool_arguments`, each with a begin and an end."""

    writing = Writing(
        f"{_CALL}{_NAME}{{name}}{_NAME_END}{_ARGUMENTS}{_CONSTRAIN}json{_MESSAGE}",
        f"{_ARGUMENTS_END}{_CALL_END}",
        None,
        _CALLS,
        _CALLS_END,
    )
    quoted = True
    ends = (_CALL_END, _CALLS_END, _ARGUMENTS_END, _CALL, _CALLS)
    openings = (_CALLS, _CALL)
    closings = (
        *(_CALLS_END, _CALL_END, _NAME, _NAME_END, _ARGUMENTS, _ARGUMENTS_END),
        *(_CONSTRAIN, _MESSAGE, "<|plamo:tag|>"),
    )

    def read(self, opening: str) -> Steps[None]:
        """One call, perhaps after the marker of a section."""
        reader, calls = self.reader, self.calls
        calls.begin()
        if opening != _CALL:
            yield from reader.expect(_CALL)
            calls.begin()
        yield from reader.expect(_NAME)
        name, _ = yield from self.name(_NAME_END)
        calls.start(name)
        yield from reader.expect(_ARGUMENTS)
        if (yield from reader.accept(_CONSTRAIN)):
            yield from reader.expect("json")
            yield from reader.expect(_MESSAGE)
        yield from arguments(reader, calls)
