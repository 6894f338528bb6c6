"""Gemma 4 and FunctionGemma: `call:f{p:value}`, with strings between tokens of their own and keys without quotes."""

import re
from typing import ClassVar

from ..reader import LONGEST_NAME, Emit, Malformed, Reader, Steps, decoded
from ..typed import quoted
from ..writing import Parameter, Writing
from .base import Grammar
from .parameters import Parameters

_SCALAR_ENDS = re.compile(r"[,\]}<]")
DEEPEST = 100


class Gemma(Grammar):
    """`<|tool_call>call:f{p:<|"|>text<|"|>,n:5,l:[1,2]}<tool_call|>`."""

    writing = Writing(
        "<|tool_call>call:{name}{", "}<tool_call|>", Parameter("{key}:", "", '{key}:<|"|>', '<|"|>', between=",")
    )
    quoted = True
    openings: ClassVar[tuple[str, ...]] = ("<|tool_call>",)
    closings: ClassVar[tuple[str, ...]] = ("<tool_call|>", '<|"|>')
    ends: ClassVar[tuple[str, ...]] = ("<tool_call|>", "<|tool_call>")
    quote: ClassVar[str] = '<|"|>'

    def read(self, opening: str) -> Steps[None]:
        """One call."""
        reader = self.reader
        self.calls.begin()
        yield from reader.expect("call:")
        name, _ = yield from self.name("{")
        parameters = Parameters(self.calls, name)
        if (yield from reader.peek()) == "}":
            reader.cut(1)
        else:
            while True:
                key = yield from _key(reader, self.quote)
                emit = parameters.string(key, known=True)
                parameters.add_json(key, (yield from _value(reader, self.quote, DEEPEST, emit)))
                if (yield from reader.expect(",", "}")) == "}":
                    break
        parameters.done()


class FunctionGemma(Gemma):
    """`<start_function_call>call:f{p:<escape>text<escape>,n:5}<end_function_call>`."""

    writing = Writing(
        "<start_function_call>call:{name}{",
        "}<end_function_call>",
        Parameter("{key}:", "", "{key}:<escape>", "<escape>", between=","),
    )
    openings = ("<start_function_call>",)
    closings = ("<end_function_call>", "<escape>")
    ends = ("<end_function_call>", "<start_function_call>")
    quote = "<escape>"


def _key(reader: Reader, quote: str) -> Steps[str]:
    if (yield from reader.accept(quote)):
        key, _ = yield from reader.until(quote)
        yield from reader.expect(":")
        return key
    key, _ = yield from reader.until(":", limit=LONGEST_NAME)
    return key.strip().strip('"')


def _value(reader: Reader, quote: str, depth: int, emit: Emit | None = None) -> Steps[str]:
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
            key = f"{quoted((yield from _key(reader, quote)))}: " if first == "{" else ""
            parts.append(key + (yield from _value(reader, quote, depth - 1)))
            if (yield from reader.expect(",", close)) == close:
                return f"{first}{', '.join(parts)}{close}"
    if first == "<":
        yield from reader.expect(quote)
        text, _ = yield from reader.until(quote, emit=emit)
        return quoted(text)
    text = (yield from reader.scalar(_SCALAR_ENDS)).strip()
    try:
        decoded(text)
    except Malformed:
        return {"None": "null", "True": "true", "False": "false"}.get(text) or quoted(text)
    return text
