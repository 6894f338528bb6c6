"""Gemma 4: `call:f{p:value}`, with strings between tokens of their own and keys without quotes."""

import re

from ..reader import LONGEST_NAME, Malformed, Reader, Steps, decoded
from ..typed import quoted
from .base import Grammar
from .parameters import Parameters

_QUOTE = '<|"|>'
_SCALAR_ENDS = re.compile(r"[,\]}<]").search
DEEPEST = 100


class Gemma(Grammar):
    """`<|tool_call>call:f{p:<|"|>text<|"|>,n:5,l:[1,2]}<tool_call|>`."""

    openings = ("<|tool_call>",)
    closings = ("<tool_call|>", _QUOTE)

    def read(self, opening: str) -> Steps[None]:
        """One call."""
        reader = self.reader
        self.calls.begin()
        yield from reader.expect("call:")
        name, _ = yield from reader.name("{")
        parameters = Parameters(self.calls, name)
        if (yield from reader.peek()) == "}":
            reader.cut(1)
        else:
            while True:
                key = yield from _key(reader)
                parameters.add_json(key, (yield from _value(reader, DEEPEST)))
                if (yield from reader.expect(",", "}")) == "}":
                    break
        parameters.done()


def _key(reader: Reader) -> Steps[str]:
    if (yield from reader.accept(_QUOTE)):
        key, _ = yield from reader.until(_QUOTE)
        yield from reader.expect(":")
        return key
    key, _ = yield from reader.until(":", limit=LONGEST_NAME)
    return key.strip().strip('"')


def _value(reader: Reader, depth: int) -> Steps[str]:
    """JSON text of one value."""
    if not depth:
        raise Malformed
    first = yield from reader.peek()
    if first == '"':
        return (yield from reader.value())
    if first in "{[":
        reader.cut(1)
        close = "}" if first == "{" else "]"
        parts: list[str] = []
        if (yield from reader.peek()) == close:
            reader.cut(1)
            return first + close
        while True:
            key = f"{quoted((yield from _key(reader)))}: " if first == "{" else ""
            parts.append(key + (yield from _value(reader, depth - 1)))
            if (yield from reader.expect(",", close)) == close:
                return f"{first}{', '.join(parts)}{close}"
    if first == "<":
        yield from reader.expect(_QUOTE)
        text, _ = yield from reader.until(_QUOTE)
        return quoted(text)
    text = (yield from reader.scalar(_SCALAR_ENDS)).strip()
    try:
        decoded(text)
    except Malformed:
        return {"None": "null", "True": "true", "False": "false"}.get(text) or quoted(text)
    return text
