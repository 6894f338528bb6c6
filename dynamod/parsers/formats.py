"""What a format says of itself, by its name."""

from collections.abc import Sequence

from .grammars import grammar_class
from .segments import ToolSpec
from .thinking import suffix_of
from .writing import Form, Unwritable, calls_form


def opening_of(tool: str, special: Sequence[str]) -> tuple[str, bool]:
    """The marker that calls of a format begin with, empty for none, and whether one of its markers is `special`."""
    grammar = grammar_class(tool).suffixed(suffix_of("", special))
    opening = grammar.openings[0] if grammar.openings and not grammar.channels else ""
    return opening, any(marker in special for marker in (*grammar.openings, *grammar.closings))


def written_calls(tool: str, tools: Sequence[ToolSpec], special: Sequence[str], *, several: bool) -> Form | None:
    """The form of an answer that is calls in this format, as the `format` of a structural tag.

    `special`: the tokenizer's special tokens. `several`: more than one call may come. None: the format owns reasoning
    too, or cannot say the arguments of one of the tools.
    """
    grammar = grammar_class(tool).suffixed(suffix_of("", special))
    if grammar.writing is None:
        return None
    try:
        return calls_form(grammar.writing, tools, several=several)
    except Unwritable:
        return None
