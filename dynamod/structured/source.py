"""A `Grammar` in llguidance's form. Imports llguidance, so this is imported only where a request has a grammar."""

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits, grammar_from

from dynamod.message.worker import Grammar

from .closed import close
from .lark import WHITESPACE
from .lengths import bound
from .tags import TAGS, Rules

LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own bounds of work per grammar and per token."""


GAP = r"gap: /[ \n\t]{0,8}/"
"""Between the end of reasoning and the form."""


def source(grammar: Grammar, *, fixed_spaces: bool = False) -> str:
    """The grammar as `LLMatcher` takes it. `fixed_spaces`: JSON has one space after commas and
    colons and no others; for versions of llguidance that let a pattern of white space repeat (1.4).

    Raises ValueError for one that is not well formed.
    """
    form = _form(grammar, fixed_spaces)
    if not (grammar.closing or grammar.calls):
        return form
    whole = {"name": "answer", "lark_grammar": _whole(grammar)}
    return json.dumps({"grammars": [whole, *_named(form, "form")]})


def _named(form: str, name: str) -> list[dict[str, Any]]:
    """A grammar in llguidance's form as part of another, which says `@name`. Raises ValueError."""
    known = json.loads(form).get("grammars") if form.startswith("{") else [{"lark_grammar": form}]
    if not isinstance(known, list) or not known or not isinstance(known[0], dict):
        raise ValueError("the grammar has no rules")
    return [{**known[0], "name": name}, *known[1:]]


def _whole(grammar: Grammar) -> str:
    """Lark of an answer with something in front of its `@form`, or instead of it."""
    rules, first, answer = [], "", "@form"
    if grammar.closing:
        first = f"({json.dumps(grammar.opening)} thoughts gap)?" if grammar.opening else "thoughts gap"
        rules += [f"thoughts[suffix={json.dumps(grammar.closing)}]: /(?s:.*)/", GAP]
    if grammar.calls:
        answer = "(@form | calls)"
        rules.append(f"calls: {json.dumps(grammar.calls)} /(?s:.*)/")
    return "\n".join((f"start: {first} {answer}", *rules))


def _choice(texts: list[str]) -> str:
    """One terminal of all texts: alternatives of a rule are items of the parser, which has room for 2,000."""
    some = [json.dumps(text) for text in texts if text]
    if not some:
        return 'start: ""'
    return f"start: CHOICE{'?' if len(some) < len(texts) else ''}\nCHOICE: {' | '.join(some)}"


def _form(grammar: Grammar, fixed_spaces: bool) -> str:
    if grammar.kind == "json":
        schema = json.loads(grammar.text)
        close(schema)
        bound(schema)
        if fixed_spaces:
            return LLMatcher.grammar_from_json_schema(
                json.dumps(schema),
                overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
            )
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": WHITESPACE})
    if grammar.kind == TAGS:
        rules = Rules(json.loads(grammar.text))
        forms = [_form(part, fixed_spaces) for _, part in rules.parts]
        inner = [one for place, form in enumerate(forms) for one in _named(form, f"part{place}")]
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": rules.lark}, *inner]})
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(_choice(json.loads(grammar.text)))
    try:
        return grammar_from("grammar", grammar.text)
    except RecursionError:
        raise ValueError("the grammar is too deeply nested") from None
