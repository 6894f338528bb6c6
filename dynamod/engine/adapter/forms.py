"""Forms of answers for engines that compile them themselves, with xgrammar. Pure.

They take a form that an answer begins with as it is. One after reasoning, or in whose place calls may come, becomes a
structural tag of xgrammar. None of them continues in the middle of a form, so `REPLAY` is not among the words.
"""

import json
from typing import Any

from dynamod.message.errors import BadRequest
from dynamod.message.worker import BEHIND, LATER_TAGS, Grammar

FORMS = (BEHIND, "structural_tag", LATER_TAGS)
"""For `Capabilities.forms`."""
_GAP = r"[ \n\t]{0,8}"
_ANY_TEXT = {"type": "any_text"}


def form(grammar: Grammar, product: str) -> tuple[str, Any]:
    """A kind, and its value: as of `Grammar`, but a list for "choice". `product`: the engine, for errors.

    Raises BadRequest for Lark where xgrammar has to read it.
    """
    if grammar.closing or grammar.calls:
        whole = {"type": "structural_tag", "format": _whole(grammar, _format(grammar, product))}
        return "structural_tag", json.dumps(whole)
    return grammar.kind, json.loads(grammar.text) if grammar.kind == "choice" else grammar.text


def gbnf(grammar: Grammar, product: str) -> str:
    """The text of a grammar. Raises BadRequest for Lark."""
    if "::=" not in grammar.text:
        raise BadRequest(f"{product} reads grammars as GBNF only here (`root ::= ...`), and this one is Lark")
    return grammar.text


def _whole(grammar: Grammar, inner: dict[str, Any]) -> dict[str, Any]:
    if grammar.calls:
        calls = {"type": "sequence", "elements": [{"type": "const_string", "value": grammar.calls}, _ANY_TEXT]}
        inner = {"type": "or", "elements": [inner, calls]}
    if not grammar.closing:
        return inner
    thoughts = {"type": "tag", "begin": grammar.opening, "content": _ANY_TEXT, "end": grammar.closing}
    behind = {"type": "sequence", "elements": [thoughts, {"type": "regex", "pattern": _GAP}, inner]}
    return {"type": "or", "elements": [behind, inner]} if grammar.opening else behind


def _format(grammar: Grammar, product: str) -> dict[str, Any]:
    if grammar.kind == "json":
        return {"type": "json_schema", "json_schema": json.loads(grammar.text)}
    if grammar.kind == "regex":
        return {"type": "regex", "pattern": grammar.text}
    if grammar.kind == "choice":
        return {
            "type": "or",
            "elements": [{"type": "const_string", "value": one} for one in json.loads(grammar.text)],
        }
    if grammar.kind == "grammar":
        return {"type": "grammar", "grammar": gbnf(grammar, product)}
    tag: dict[str, Any] = json.loads(grammar.text)
    if "format" in tag:
        found: dict[str, Any] = tag["format"]
        return found
    tags = [
        {
            "type": "tag",
            "begin": one["begin"],
            "content": {"type": "json_schema", "json_schema": one["schema"]},
            "end": one.get("end", ""),
        }
        for one in tag["structures"]
    ]
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
