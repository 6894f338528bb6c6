"""Reasoning and tool calls in a model's text: `make_parser`, one per choice, and `choose` when none is named."""

from .choose import choose
from .parser import OutputParser, make_parser
from .segments import Arguments, Call, CallStart, Content, Dropped, Reasoning, Segment, ToolSpec, assemble

__all__ = [
    "Arguments",
    "Call",
    "CallStart",
    "Content",
    "Dropped",
    "OutputParser",
    "Reasoning",
    "Segment",
    "ToolSpec",
    "assemble",
    "choose",
    "make_parser",
]
