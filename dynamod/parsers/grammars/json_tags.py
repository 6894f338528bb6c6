"""JSON between markers: one call, several, or a list of them."""

from typing import ClassVar

from ..reader import Steps
from ..writing import Writing, written_json
from .base import Grammar
from .json_calls import json_calls, keyed_calls, python_call


class Hermes(Grammar):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call."""

    writing = written_json("<tool_call>\n", "\n</tool_call>", "\n")
    quoted = True
    openings: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closings: ClassVar[tuple[str, ...]] = ("</tool_call>",)

    def read(self, opening: str) -> Steps[None]:
        """The calls of one pair of markers, which may have a fence of code in between."""
        fence = yield from self.reader.accept("```json", "```", "{'")
        if fence == "{'":
            self.reader.back(fence)
            yield from python_call(self.reader, self.calls, *self.call_ends())
            return
        yield from json_calls(self.reader, self.calls)
        if fence:
            yield from self.reader.accept("```")


class Granite(Hermes):
    """`<|tool_call|>[{...}]`, or the same tags as Hermes, or the list without a marker."""

    writing = written_json("<|tool_call|>[", "]", ", ")
    openings = ("<|tool_call|>", "<tool_call>")
    bare = "["

    def read(self, opening: str) -> Steps[None]:
        """The calls of one marker; without one only of tools that there are."""
        if opening:
            yield from super().read(opening)
        else:
            yield from json_calls(self.reader, self.calls, self.calls.tools)


class Jamba(Hermes):
    """`<tool_calls>[{...}, {...}]</tool_calls>`."""

    writing = written_json("<tool_calls>[", "]</tool_calls>", ", ")
    openings = ("<tool_calls>",)
    closings = ("</tool_calls>",)


class NemotronDeci(Hermes):
    """`<TOOLCALL>[{...}, {...}]</TOOLCALL>`."""

    writing = written_json("<TOOLCALL>[", "]</TOOLCALL>", ", ")
    openings = ("<TOOLCALL>",)
    closings = ("</TOOLCALL>",)


class Longcat(Hermes):
    """`<longcat_tool_call>{...}</longcat_tool_call>`."""

    writing = written_json("<longcat_tool_call>\n", "\n</longcat_tool_call>", "\n")
    openings = ("<longcat_tool_call>",)
    closings = ("</longcat_tool_call>",)


class Granite20b(Hermes):
    """`<function_call>{"name": ..., "arguments": {...}}`, once per call, without a closing marker."""

    writing = written_json("<function_call> ")
    openings = ("<function_call>",)
    closings = ("</function_call>",)


class Internlm(Hermes):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

    writing = written_json("<|action_start|><|plugin|>\n", "<|action_end|>\n", key="parameters")
    openings = ("<|action_start|>",)
    closings = ("<|action_end|>", "<|plugin|>")

    def read(self, opening: str) -> Steps[None]:
        """The calls of one pair of markers; what the model sends to its interpreter is none."""
        yield from self.reader.expect("<|plugin|>")
        yield from super().read(opening)


class Gigachat(Hermes):
    """`<|function_call|>{...}`, or a turn of its own: `<|message_sep|>function call<|role_sep|>{...}`."""

    writing = written_json("<|function_call|>")
    openings = ("<|function_call|>", "function call<|role_sep|>")
    closings = ("<|message_sep|>", "<|role_sep|>")


class Cohere(Hermes):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`.

    The answer has markers too: they are no content.
    """

    writing = written_json("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    ", "parameters", "tool_name")
    openings = ("<|START_ACTION|>",)
    closings = ("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


class Apertus(Hermes):
    """`<|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>`: the only key of an object is the tool's name."""

    writing = Writing('{"{name}": ', "}", None, "<|tools_prefix|>[", "]<|tools_suffix|>", ", ")
    openings = ("<|tools_prefix|>",)
    closings = ("<|tools_suffix|>",)

    def read(self, opening: str) -> Steps[None]:
        """The calls of one pair of markers."""
        yield from keyed_calls(self.reader, self.calls)
