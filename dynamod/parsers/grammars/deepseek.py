"""DeepSeek's tokens around JSON arguments: version 3 with a fence of code, version 3.1 without."""

from typing import ClassVar

from ..reader import Steps
from ..writing import Writing
from .base import Grammar
from .json_calls import arguments

_CALL = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"
_LAST = "<｜tool▁calls▁end｜>"


class DeepseekV31(Grammar):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`."""

    writing = Writing(f"{_CALL}{{name}}{_SEPARATOR}", _END, None, "<｜tool▁calls▁begin｜>", _LAST)
    quoted = True
    openings = ("<｜tool▁calls▁begin｜>", _CALL)
    closings = (_END, _LAST, _SEPARATOR)
    ends = (_END, _LAST, *openings)
    prefixed: ClassVar[bool] = False
    """A call begins with its kind, and its name follows the separator."""

    def read(self, opening: str) -> Steps[None]:
        """The calls of one section."""
        reader, calls = self.reader, self.calls
        if opening != _CALL:
            calls.begin()
            yield from reader.expect(_CALL)
        while True:
            calls.begin()
            if self.prefixed:
                yield from self.name(_SEPARATOR)
                name, _ = yield from self.name("\n", "```json")
            else:
                name, _ = yield from self.name(_SEPARATOR)
            calls.start(name)
            if (yield from reader.peek()) == "`":
                yield from reader.expect("```json")
            yield from arguments(reader, calls)
            if (yield from reader.peek()) == "`":
                yield from reader.accept("```")
            end = yield from reader.accept(_END, _LAST)
            if end == _LAST:
                return
            if not end or not (yield from reader.accept(_CALL)):
                return


class DeepseekV3(DeepseekV31):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, then the arguments in a fence of JSON code."""

    writing = Writing(
        f"{_CALL}function{_SEPARATOR}{{name}}\n```json\n", f"\n```{_END}", None, "<｜tool▁calls▁begin｜>", _LAST, "\n"
    )
    prefixed = True
