"""Reasoning and tool calls in a model's text: `make_parser`, one per choice, and `choose` when none is named."""

from .behind import BehindReasoning
from .choose import AUTO, NONE, check_names, choose
from .formats import opening_of, written_calls
from .parser import TURN_CHARS, OutputParser, keeping_cut, make_parser
from .segments import Arguments, Broken, Call, CallStart, Content, Dropped, Reasoning, Segment, ToolSpec, assemble
from .thinking import thinking_of

__all__ = [
    "AUTO",
    "NONE",
    "TURN_CHARS",
    "Arguments",
    "BehindReasoning",
    "Broken",
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
    "keeping_cut",
    "make_parser",
    "opening_of",
    "thinking_of",
    "written_calls",
]
