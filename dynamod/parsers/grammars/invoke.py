"""Tags with attributes: `<invoke name="f">` and `<parameter name="p">`, as MiniMax and DeepSeek 3.2 write them."""

import re
from typing import ClassVar

from ..reader import Ended, Malformed, Steps, decoded
from ..typed import quoted
from .base import Grammar
from .parameters import Parameters, trimmed

_NAME = re.compile(r"""name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
LONGEST_TAG = 1000


class Minimax(Grammar):
    """`<minimax:tool_call><invoke name="f"><parameter name="p">value</parameter></invoke></minimax:tool_call>`."""

    openings: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "<invoke")
    closings: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>", "</invoke>", "</parameter>")
    mark: ClassVar[str] = ""
    """What stands in front of the tags' names."""

    def read(self, opening: str) -> Steps[None]:
        """The calls between the outer markers."""
        reader, word = self.reader, f"<{self.mark}invoke"
        self.calls.begin()
        if opening != word:
            yield from reader.expect(word)
        while True:
            self.calls.begin()
            tag, _ = yield from reader.until(">", limit=LONGEST_TAG)
            yield from self._invoke(Parameters(self.calls, _attribute(tag)))
            if not (yield from reader.accept(word)):
                return

    def _invoke(self, parameters: Parameters) -> Steps[None]:
        mark, reader = self.mark, self.reader
        close = f"</{mark}parameter>"
        while True:
            try:
                word = yield from reader.expect(f"<{mark}parameter", f"</{mark}invoke>", *self.closings)
            except Ended:
                raise parameters.unclosed() from None
            if word != f"<{mark}parameter":
                break
            tag, _ = yield from reader.until(">", limit=LONGEST_TAG)
            value, _ = yield from reader.until(close)
            self.add(parameters, _attribute(tag), tag, value)
        parameters.done()

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter. `tag`: its attributes."""
        parameters.add(name, trimmed(value))


class Dsml(Minimax):
    """`<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">...`.

    `string="true"`: the value is a string as it stands; "false": it is JSON.
    """

    openings = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke")
    closings = (
        *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        *("</｜DSML｜invoke>", "</｜DSML｜parameter>", "<｜DSML｜parameter"),
    )
    mark = "｜DSML｜"

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter, of the type that its tag says."""
        if 'string="true"' in tag:
            parameters.add_json(name, quoted(value))
            return
        try:
            decoded(value)
        except Malformed:
            parameters.add(name, value)
        else:
            parameters.add_json(name, value.strip())


def _attribute(tag: str) -> str:
    match = _NAME.search(tag)
    name = next(filter(None, match.groups()), "") if match else ""
    if not name:
        raise Malformed
    return name
