"""JSON between markers: one call, several, or a list of them."""

from typing import ClassVar

from ..reader import Steps
from .base import Grammar
from .json_calls import json_calls


class Hermes(Grammar):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call."""

    openings: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closings: ClassVar[tuple[str, ...]] = ("</tool_call>",)

    def read(self, opening: str) -> Steps[None]:
        """The calls of one pair of markers."""
        yield from json_calls(self.reader, self.calls)


class Granite(Hermes):
    """`<|tool_call|>[{...}]`, or the same tags as Hermes."""

    openings = ("<|tool_call|>", "<tool_call>")


class Jamba(Hermes):
    """`<tool_calls>[{...}, {...}]</tool_calls>`."""

    openings = ("<tool_calls>",)
    closings = ("</tool_calls>",)


class NemotronDeci(Hermes):
    """`<TOOLCALL>[{...}, {...}]</TOOLCALL>`."""

    openings = ("<TOOLCALL>",)
    closings = ("</TOOLCALL>",)


class Longcat(Hermes):
    """`<longcat_tool_call>{...}</longcat_tool_call>`."""

    openings = ("<longcat_tool_call>",)
    closings = ("</longcat_tool_call>",)
