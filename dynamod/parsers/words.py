"""The markers that a parser looks for: in content, in reasoning, and directly after a call in reasoning."""

from collections.abc import Sequence
from typing import NamedTuple

from .grammars.base import Grammar
from .markers import Markers, markers
from .thinking import Thinking

TURN_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>"),
    *("<｜end▁of▁sentence｜>", "[e~[", "<|tool_response>"),
)
"""Special tokens that end a turn: never content. A tokenizer's other special tokens come as `special`."""


class Words(NamedTuple):
    """`after_call`: those of reasoning, and what may follow a call. `inner`: words that begin a call after text."""

    content: Markers
    reasoning: Markers
    after_call: Markers
    inner: frozenset[str]
    special: frozenset[str]


def words_of(grammar: Grammar | None, thinking: Thinking, special: Sequence[str]) -> Words:
    """The markers of a parser; of the tokenizer's `special` tokens all."""
    dropped = (*TURN_ENDS, *special)
    thoughts = () if thinking.append else (*thinking.openings, *thinking.closings)
    if grammar is None:
        found = markers(*thoughts, *dropped)
        return Words(markers(*thoughts, *thinking.around, *dropped), found, found, frozenset(), frozenset(special))
    inner = grammar.inner_words()
    strong = () if grammar.weak else grammar.openings
    inside = (*strong, *(grammar.closings if grammar.channels else ()))
    return Words(
        markers(*thoughts, *thinking.around, *grammar.openings, *grammar.closings, *inner, *dropped),
        markers(*thoughts, *inside, *dropped),
        markers(*thoughts, *strong, *grammar.closings, *dropped),
        frozenset(inner),
        frozenset(special),
    )
