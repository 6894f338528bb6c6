"""Tags with the name after `=`: `<function=f>` and `<parameter=p>`."""

from typing import ClassVar

from ..reader import Ended, Steps
from ..writing import Parameter, Writing
from .base import Grammar
from .json_calls import arguments, json_calls
from .parameters import Parameters, Stops, tagged, trimmed


class Qwen3Coder(Grammar):
    """`<tool_call><function=f><parameter=p>value</parameter></function></tool_call>`; the outer tags may be missing.

    Instead of parameters a JSON object may stand: `<function=f>{...}</function>`. Some models write the whole call as
    JSON between the outer tags, as in Hermes' format.
    """

    writing = Writing(
        "<tool_call>\n<function={name}>\n",
        "</function>\n</tool_call>",
        Parameter("<parameter={key}>\n", "\n</parameter>\n"),
        between="\n",
    )
    openings: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=")
    closings: ClassVar[tuple[str, ...]] = ("</tool_call>", "</function>", "</parameter>", "<parameter=")
    lines: ClassVar[bool] = True
    """Values stand on lines of their own: the line breaks next to their tags are no part of them."""

    def read(self, opening: str) -> Steps[None]:
        """The calls of one pair of outer tags, or one function."""
        stops = self.stops(opening)
        while True:
            self.calls.begin()
            if opening != "<function=":
                if (yield from self.reader.peek()) in "{[":
                    yield from json_calls(self.reader, self.calls)
                    return
                yield from self.reader.expect("<function=")
            yield from self._function(stops)
            if opening == "<function=" or (yield from self.reader.peek()) != "<":
                return
            if not (yield from self.reader.accept("<function=")):
                return
            opening = "<function="

    def _function(self, stops: Stops) -> Steps[None]:
        reader = self.reader
        name, _ = yield from self.name(">")
        parameters = Parameters(self.calls, name)
        try:
            first = yield from reader.peek()
        except Ended:
            raise parameters.unclosed() from None
        if first == "{":
            yield from arguments(reader, self.calls)
            return
        while True:
            try:
                tag = yield from reader.expect("<parameter=", "</function>", "</tool_call>", *self.closings)
            except Ended:
                raise parameters.unclosed() from None
            if tag != "<parameter=":
                break
            key, _ = yield from self.name(">")
            emit = parameters.string(key, lines=self.lines)
            value = yield from tagged(reader, self.calls, stops, emit)
            parameters.add(key, trimmed(value) if self.lines else value)
        parameters.done()

    @classmethod
    def stops(cls, opening: str) -> Stops:
        """What ends a value of a call that an opening marker is in front of.

        The text of a function without outer tags may be followed by any text.
        """
        closed = ("",) if opening == "<function=" else (cls.closings[0], "</function>", *cls.openings)
        next_value = ("<parameter=",)
        outer = ("</function>", cls.closings[0])
        return Stops("</parameter>", next_value, next_value, outer, ("<parameter=", "</function>"), closed)


class Mimo(Qwen3Coder):
    """The same with values as they stand between their tags."""

    writing = Qwen3Coder.writing._replace(parameter=Parameter("<parameter={key}>", "</parameter>\n"))
    lines = False


class SeedOss(Qwen3Coder):
    """The same within `<seed:tool_call>`."""

    writing = Writing(
        "<function={name}>\n",
        "</function>\n",
        Qwen3Coder.writing.parameter,
        "<seed:tool_call>\n",
        "</seed:tool_call>",
    )
    openings = ("<seed:tool_call>", "<function=")
    closings = ("</seed:tool_call>", "</function>", "</parameter>", "<parameter=")
