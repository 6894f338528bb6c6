"""Calls as Python writes them: `[f(a=1, b="x"), g()]`."""

import re
from typing import ClassVar

from ..reader import Emit, Malformed, Steps, decoded, escaped
from ..typed import literal, quoted
from ..writing import Parameter, Writing
from .base import Grammar
from .parameters import Parameters

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_SPECIAL = {
    "": re.compile(r"[\"'()\[\]{},\\]").search,
    "'": re.compile(r"['\\]").search,
    '"': re.compile(r"[\"\\]").search,
}
"""What may change how the text after it is read, by the quote of the string that the text is in."""
_PAIR = {")": "(", "]": "[", "}": "{"}


class Pythonic(Grammar):
    """A list of calls with keywords. Without a marker only a tool's name makes it one."""

    writing = Writing("{name}(", ")", Parameter("{key}=", "", quoted=True, between=", "), "[", "]", ", ")
    quoted = True
    bare = "["
    whole: ClassVar[bool] = True
    """A list: brackets are around the calls."""

    def read(self, opening: str) -> Steps[None]:
        """The calls at this place."""
        reader, calls = self.reader, self.calls
        calls.begin()
        listed = (yield from reader.peek()) == "["
        if listed:
            reader.cut(1)
        elif self.whole:
            raise Malformed
        while True:
            calls.begin()
            yield from reader.peek()
            name = yield from self._word("(")
            if not opening and name not in calls.tools:
                raise Malformed
            yield from self._parameters(Parameters(calls, name))
            if listed:
                if not (yield from reader.accept(",")):
                    yield from reader.accept("]")
                    return
            elif not _NAME.match((yield from reader.peek())):
                return

    def inner_words(self) -> tuple[str, ...]:
        """A list that begins with one of the tools, where no marker is in front of it."""
        return tuple(f"[{name}(" for name in self.calls.tools) if self.bare else ()

    def _word(self, stop: str) -> Steps[str]:
        """An identifier and the character after it."""
        reader = self.reader
        while True:
            match = _NAME.match(reader.held)
            if match is None or match.end() > 256:
                raise Malformed
            if match.end() < len(reader.held):
                break
            yield from reader.more()
        name = reader.cut(match.end())
        yield from reader.expect(stop)
        return name

    def _parameters(self, parameters: Parameters) -> Steps[None]:
        reader = self.reader
        while (yield from reader.peek()) != ")":
            name = yield from self._word("=")
            text, stop = yield from self._value(StringPieces(parameters, name))
            value = _read(text.strip())
            if value is None:
                raise Malformed
            made, kind = value
            parameters.add_json(name, quoted(str(decoded(made))) if kind == "string" else made)
            if stop == ")":
                break
        else:
            reader.cut(1)
        parameters.done()

    def _value(self, emit: Emit) -> Steps[tuple[str, str]]:
        """Text up to the `,` or `)` that ends the value, and which it is; line breaks in strings are escaped.

        `emit`: gets what was read in pieces, as it stands.
        """
        reader, parts, opened, quote = self.reader, list[str](), list[str](), ""
        while True:
            text, begin, at = reader.held, 0, 0  # `parts` has what is in front of `begin`
            while (match := _SPECIAL[quote](text, at)) is not None:
                mark, at = match[0], match.end()
                if mark == "\\":
                    if at == len(text):
                        break  # it waits for what it escapes, all before it continues
                    at += 1
                elif quote:
                    parts.append(escaped(text[begin:at]))
                    begin, quote = at, ""
                elif not opened and mark in ",)":
                    emit(reader.cut(at))
                    parts.append(text[begin : at - 1])
                    return "".join(parts), mark
                elif mark in "\"'":
                    parts.append(text[begin:at])
                    begin, quote = at, mark
                elif mark in "([{":
                    opened.append(mark)
                elif mark in _PAIR and (not opened or opened.pop() != _PAIR[mark]):
                    emit(reader.cut(at))
                    raise Malformed
            rest = reader.cut(len(text) if match is None else match.start())
            emit(rest)
            parts.append(escaped(rest[begin:]) if quote else rest[begin:])
            yield from reader.more()


class StringPieces:
    """Passes the text of a Python string on as its literal comes in pieces.

    Passes on what JSON and Python read alike, up to the first other escape, and nothing of a value that is no string.
    """

    def __init__(self, parameters: Parameters, name: str) -> None:
        self._parameters, self._name = parameters, name
        self._quote = ""
        self._over = not parameters.certain(name, known=True)

    def __call__(self, piece: str) -> None:
        """The next piece of the literal, no escape in parts."""
        if not self._quote and not self._over:
            piece = piece.lstrip()
            self._quote, piece = piece[:1], piece[1:]
            self._over = self._quote not in ("", "'", '"')
        found, used = list[str](), 0
        for match in _PARTS(piece) if not self._over and self._quote else ():
            text = _ESCAPES.get(match[0], "") if match[0][0] == "\\" else match[0]
            if not text or (text == self._quote and match[0] == text):
                self._over = True
                break
            found.append(text)
            used = match.end()
        if found:
            self._parameters.more(self._name, "".join(found), len(piece) - used)


_PARTS = re.compile(r"[^'\"\\]+|['\"]|\\.?", re.DOTALL).finditer
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\", '\\"': '"', "\\'": "'"}


def _read(text: str) -> tuple[str, str] | None:
    """As `literal`; numbers may begin with zeros, and strings have their own quotes inside."""
    found = literal(_PYTHON.get(text, text))
    if found is None and (number := _ZEROS(text)) is not None:
        return number[1] + number[2], "integer"
    if found is None and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        inner = re.sub(rf"(\\.)|{text[0]}", lambda match: match[1] or "\\" + match[0], text[1:-1], flags=re.DOTALL)
        return literal(text[0] + inner + text[0])
    return found


_ZEROS = re.compile(r"(-?)0+([0-9]+)").fullmatch
_PYTHON = {"None": "null", "True": "true", "False": "false"}


class Llama4(Pythonic):
    """The list between `<|python_start|>` and `<|python_end|>`, or without."""

    writing = Pythonic.writing._replace(front="<|python_start|>[", back="]<|python_end|>")
    openings = ("<|python_start|>",)
    closings = ("<|python_end|>",)


class Lfm2(Pythonic):
    """The list between `<|tool_call_start|>` and `<|tool_call_end|>`."""

    writing = Pythonic.writing._replace(front="<|tool_call_start|>[", back="]<|tool_call_end|>")
    openings = ("<|tool_call_start|>",)
    closings = ("<|tool_call_end|>",)
    bare = ""


class Olmo3(Pythonic):
    """Calls, one a line, between `<function_calls>` and `</function_calls>`."""

    writing = Pythonic.writing._replace(front="<function_calls>", back="</function_calls>", between="\n")
    openings = ("<function_calls>",)
    closings = ("</function_calls>",)
    bare = ""
    whole = False
