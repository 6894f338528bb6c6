"""Reasoning and tool calls in a model's text: `make_parser`, one per choice, and `choose` when none is named."""

from .choose import NONE, check_names, choose
from .parser import OutputParser, make_parser
from .segments import Arguments, Call, CallStart, Content, Dropped, Reasoning, Segment, ToolSpec, assemble

__all__ = [
    "NONE",
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
    "check_names",
    "choose",
    "make_parser",
]
