"""A `Grammar` in llguidance's form. Imports llguidance, so this is imported only where a request has a grammar."""

import json

from llguidance import LLMatcher, LLParserLimits, grammar_from

from dynamod.message.worker import Grammar

WHITESPACE = r"[ \n\t]{0,24}"
"""Between the parts of a JSON value: without a bound, small models write white space for ever."""

LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own bounds of work per grammar and per token."""


def source(grammar: Grammar) -> str:
    """The grammar as `LLMatcher` takes it. Raises ValueError for one that is not well formed."""
    if grammar.kind == "json":
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_pattern": WHITESPACE})
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, json.loads(grammar.text))))
    try:
        return grammar_from("grammar", grammar.text)
    except RecursionError:
        raise ValueError("the grammar is too deeply nested") from None
