"""Tags with attributes: `<invoke name="f">` and `<parameter name="p">`, as MiniMax M2 and others write them."""

import html
import re
from typing import ClassVar

from ..reader import Ended, Malformed, Steps, decoded
from ..typed import quoted
from .base import Grammar
from .parameters import Parameters, trimmed

_NAME = re.compile(r"""\b(?:name|tool|key)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
LONGEST_TAG = 1000


class Minimax(Grammar):
    """`<minimax:tool_call><invoke name="f"><parameter name="p">value</parameter></invoke></minimax:tool_call>`.

    `call`, `parameter`: how their tags begin; `tag_end`: how tags end; `call_end`, `parameter_end`: their closing tags.
    `front`: words that may stand in front of a call, in this order. `outer`: markers that end a call whose closing tag
    is missing; empty: all closings do.
    """

    openings: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "<invoke")
    closings: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>", "</invoke>", "</parameter>", "<parameter")
    call: ClassVar[str] = "<invoke"
    parameter: ClassVar[str] = "<parameter"
    tag_end: ClassVar[str] = ">"
    call_end: ClassVar[str] = "</invoke>"
    parameter_end: ClassVar[str] = "</parameter>"
    front: ClassVar[tuple[str, ...]] = ()
    outer: ClassVar[tuple[str, ...]] = ()

    def read(self, opening: str) -> Steps[None]:
        """The calls between the outer markers."""
        self.calls.begin()
        if opening != self.call and not (yield from self._next()):
            raise Malformed
        while True:
            self.calls.begin()
            tag, _ = yield from self.reader.until(self.tag_end, limit=LONGEST_TAG)
            yield from self.parameters(Parameters(self.calls, attribute(tag)))
            if not (yield from self._next()):
                return

    def _next(self) -> Steps[str]:
        for word in self.front:
            yield from self.reader.accept(word)
        return (yield from self.reader.accept(self.call))

    def parameters(self, parameters: Parameters) -> Steps[None]:
        """Those of one call, and its end."""
        reader = self.reader
        while True:
            try:
                word = yield from reader.expect(self.parameter, self.call_end, *(self.outer or self.closings))
            except Ended:
                raise parameters.unclosed() from None
            if word != self.parameter:
                break
            tag, _ = yield from reader.until(self.tag_end, limit=LONGEST_TAG)
            value, _ = yield from reader.until(self.parameter_end)
            self.add(parameters, attribute(tag), tag, value)
        parameters.done()

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter. `tag`: its attributes."""
        parameters.add(name, trimmed(value))


class Dsml(Minimax):
    """`<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">...`.

    `string="true"`: the value is a string as it stands; "false": it is JSON.
    """

    openings: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke")
    closings: ClassVar[tuple[str, ...]] = (
        *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        *("</｜DSML｜invoke>", "</｜DSML｜parameter>", "<｜DSML｜parameter"),
    )
    call, parameter = "<｜DSML｜invoke", "<｜DSML｜parameter"
    call_end, parameter_end = "</｜DSML｜invoke>", "</｜DSML｜parameter>"
    text: ClassVar[str] = 'string="true"'
    """The attribute of strings; other values are JSON."""

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter, of the type that its tag says."""
        if self.text in tag:
            parameters.add_json(name, quoted(value))
            return
        try:
            decoded(value)
        except Malformed:
            parameters.add(name, value)
        else:
            parameters.add_json(name, value.strip())


class KimiK3(Dsml):
    """`<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="p" type="string"<|sep|>...`.

    The answer is a channel too (`response`): its markers are no content.
    """

    openings = ("<|open|>tools<|sep|>",)
    closings = (
        *("<|close|>tools<|sep|>", "<|close|>call<|sep|>", "<|close|>argument<|sep|>", "<|close|>message<|sep|>"),
        *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|open|>", "<|close|>", "<|sep|>"),
    )
    call, parameter, tag_end = "<|open|>call", "<|open|>argument", "<|sep|>"
    call_end, parameter_end = "<|close|>call<|sep|>", "<|close|>argument<|sep|>"
    outer = ("<|close|>tools<|sep|>", "<|close|>message<|sep|>")
    text = 'type="string"'


class Step3(Minimax):
    """`<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">...`."""

    openings = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke")
    closings = (
        *("<｜tool_calls_end｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"),
        *("</steptml:invoke>", "</steptml:parameter>", "<steptml:parameter"),
    )
    call, parameter = "<steptml:invoke", "<steptml:parameter"
    call_end, parameter_end = "</steptml:invoke>", "</steptml:parameter>"
    front = ("<｜tool_call_end｜>", "<｜tool_call_begin｜>", "function", "<｜tool_sep｜>")


def attribute(tag: str) -> str:
    """The name in a tag. Raises Malformed where it has none."""
    match = _NAME.search(tag)
    name = html.unescape(next(filter(None, match.groups()), "")) if match else ""
    if not name:
        raise Malformed
    return name
