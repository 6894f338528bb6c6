"""Whether a grammar compiles, and can be begun, with a vocabulary of single bytes."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from llguidance import LLMatcher

from dynamod.message.worker import Grammar

from .place import SHARED, parts
from .source import LIMITS, source
from .vocabulary import Vocabulary

MANY = 300
"""Properties of one object from which on it is tried alone: how many may come is found out when they may, which for
a part of a schema would be in the middle of an answer."""
STEPS = 256
"""Bytes of an answer that are tried."""
_BRACE = ord("{")


class _Bytes:
    """A tokenizer with a token for each byte."""

    def pieces(self, special: bytes) -> list[bytes]:
        return [*[bytes((byte,)) for byte in range(256)], special + b"<end>"]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _vocabulary() -> Vocabulary:
    return Vocabulary(_Bytes(), (256,))


def problem(grammar: Grammar) -> tuple[str, str]:
    """Why the grammar cannot be followed, empty when it can; and where in its schema, as far as that is known."""
    if error := whole_problem(grammar):
        return error, ""
    if grammar.kind == "json":
        schema: dict[str, Any] = msgspec.json.decode(grammar.text)
        shared = {name: schema[name] for name in SHARED if name in schema}
        for path, part in _large(schema):
            if error := schema_problem({**shared, **part}):
                return error, path
    return "", ""


def whole_problem(grammar: Grammar) -> str:
    """The same without the parts of a schema."""
    try:
        text = source(grammar)
    except ValueError as error:
        return str(error)
    matcher = LLMatcher(_vocabulary().tokenizer, text, log_level=0, limits=LIMITS)
    if found := matcher.get_error():
        reason = re.search(r"^error: (.+)$", found, re.MULTILINE) if grammar.kind == "regex" else None
        return found if reason is None else f"the regular expression is not valid: {reason[1]}"
    mask = matcher.compute_bitmask()
    if grammar.kind not in ("json", "json_object"):
        return _walk(matcher, mask)
    if grammar.kind == "json" and matcher.validate_tokens([_BRACE]):
        matcher.consume_token(_BRACE)  # all properties may come now
    return matcher.get_error()


def _walk(matcher: LLMatcher, mask: bytes) -> str:
    """Why the beginning of an answer cannot be followed, empty when it can.

    Some grammars compile, and are too much work at the first tokens: the first bytes that may come are tried, and one
    byte again and again as long as it may come, which is where grammars with several readings grow.
    """
    last = -1
    for _ in range(STEPS):
        if found := matcher.get_error():
            return found
        if matcher.is_stopped():
            break
        if last < 0 or not mask[last >> 3] >> (last & 7) & 1:
            allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
            if not allowed:
                break
            last = max(allowed, key=lambda byte: (chr(byte).isalpha(), -byte))
        matcher.consume_token(last)
        mask = matcher.compute_bitmask()
    return matcher.get_error()


def schema_problem(schema: dict[str, Any]) -> str:
    """The same of a schema."""
    return whole_problem(Grammar("json", msgspec.json.encode(schema).decode()))


def _large(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts with many properties. The depth of a schema has been bounded before."""
    for path, part in parts(schema):
        if isinstance(part, dict):
            if isinstance(properties := part.get("properties"), dict) and len(properties) > MANY:
                yield path, part
            yield from ((path + inner, found) for inner, found in _large(part))
