"""GLM: a name, then keys and values in tags of their own."""

from ..reader import Ended, Steps
from .base import Grammar
from .parameters import Parameters


class Glm(Grammar):
    """`<tool_call>f<arg_key>p</arg_key><arg_value>value</arg_value></tool_call>`, with or without line breaks."""

    openings = ("<tool_call>",)
    closings = ("</tool_call>", "</arg_key>", "</arg_value>", "<arg_key>", "<arg_value>")

    def read(self, opening: str) -> Steps[None]:
        """One call."""
        reader = self.reader
        self.calls.begin()
        name, stop = yield from reader.name("<arg_key>", "</tool_call>")
        parameters = Parameters(self.calls, name)
        while stop == "<arg_key>":
            key, _ = yield from reader.until("</arg_key>")
            yield from reader.expect("<arg_value>")
            value, _ = yield from reader.until("</arg_value>")
            parameters.add(key.strip(), value)
            try:
                stop = yield from reader.expect("<arg_key>", "</tool_call>")
            except Ended:
                raise parameters.unclosed() from None
        parameters.done()
