"""Reads text that comes in pieces: what is read never depends on where the pieces were cut.

A grammar is a generator over a Reader. It yields where it needs more text, so its code reads like that of a parser
which has the whole text, and its state is the place where it waits.
"""

import re
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec

from .markers import markers

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A parser that yields when it needs more text, and returns a T."""

SLICE_CHARS = 2048
"""The longest text that one step reads: what a step costs, and what `cut` copies, does not grow with the pieces."""
LONGEST_NAME = 256
LONGEST_SCALAR = 4000
_STRUCTURE = re.compile(r'[{}\[\]"]').search
_IN_STRING = re.compile(r'["\\]').search
_SCALAR_ENDS = re.compile(r"[\s,}\]<;]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_PAIR = {"}": "{", "]": "["}


class Ended(Exception):
    """The text is over, and the grammar wanted more."""


class Malformed(Exception):
    """The text does not follow the grammar."""


class Reader:
    """`held`: text that a step may read. `waiting`: characters that come after `held`, in slices.

    `closed`: no more comes after `held`. `ended`: no more text is given. `position`: characters that were read.
    `log`: what was read, while it may be undone.
    """

    __slots__ = ("_given", "closed", "ended", "held", "log", "position", "waiting")

    def __init__(self) -> None:
        self.held = ""
        self.closed = self.ended = False
        self.position = self.waiting = 0
        self.log: list[str] | None = None
        self._given = deque[tuple[str, int]]()  # texts, and where the part of each begins that no step has seen

    def give(self, text: str) -> None:
        """More text, which `advance` makes readable."""
        if text:
            self._given.append((text, 0))
            self.waiting += len(text)

    def end(self) -> None:
        """No more text is given."""
        self.ended = True
        self.closed = not self.waiting

    def advance(self) -> int:
        """Makes the next slice readable. Returns its length."""
        if not self._given:
            return 0
        text, at = self._given.popleft()
        piece = text[at : at + SLICE_CHARS]
        if at + len(piece) < len(text):
            self._given.appendleft((text, at + len(piece)))
        self.held += piece
        self.waiting -= len(piece)
        self.closed = self.ended and not self.waiting
        return len(piece)

    def more(self) -> Steps[None]:
        """Waits for text. Raises Ended when no more comes."""
        if self.closed:
            raise Ended
        yield

    def cut(self, count: int) -> str:
        """The first `count` held characters; they are read now."""
        text, self.held = self.held[:count], self.held[count:]
        self.position += count
        if self.log is not None:
            self.log.append(text)
        return text

    def back(self, text: str) -> None:
        """Text in front of `held` again, which the next step reads."""
        self.held = text + self.held
        self.position -= len(text)

    def logged(self) -> str:
        """What was logged."""
        if self.log is not None and len(self.log) > 1:
            self.log = ["".join(self.log)]
        return self.log[0] if self.log else ""

    def undo(self) -> None:
        """What was logged is unread again."""
        read = self.logged()
        self.position -= len(read)
        self.log = None
        self.held = read + self.held
        if len(self.held) > SLICE_CHARS:
            text, self.held = self.held, self.held[:SLICE_CHARS]
            self._given.appendleft((text, SLICE_CHARS))
            self.waiting += len(text) - SLICE_CHARS
            self.closed = False

    def peek(self) -> Steps[str]:
        """The next character that is no white space; the white space is read."""
        while not (rest := self.held.lstrip()):
            self.cut(len(self.held))
            yield from self.more()
        if len(rest) < len(self.held):
            self.cut(len(self.held) - len(rest))
        return rest[0]

    def accept(self, *words: str) -> Steps[str]:
        """Reads which of the words comes next, after white space, the longest of several; "" when none does."""
        yield from self.peek()
        while True:
            found = max((word for word in words if self.held.startswith(word)), key=len, default="")
            if self.closed or not any(len(word) > len(self.held) and word.startswith(self.held) for word in words):
                if not found and self.closed and any(word.startswith(self.held) for word in words):
                    raise Ended
                return self.cut(len(found))
            yield

    def expect(self, *words: str) -> Steps[str]:
        """As `accept`; raises Malformed when it is none of them."""
        found = yield from self.accept(*words)
        if not found:
            raise Malformed
        return found

    def until(self, *stops: str, limit: int = 0) -> Steps[tuple[str, str]]:
        """Text up to the next of the words, and that word. Raises Malformed above `limit` characters (0: none)."""
        parts: list[str] = []
        find, size = markers(*stops).find, 0
        while True:
            end, stop = find(self.held, self.closed)
            if not stop and self.closed:
                raise Ended
            if limit and size + end > limit:
                self.cut(limit + 1 - size)  # however the text was cut, the same is read, and so may be undone
                raise Malformed
            parts.append(self.cut(end))
            size += end
            if stop:
                self.cut(len(stop))
                return "".join(parts), stop
            yield

    def name(self, *stops: str) -> Steps[tuple[str, str]]:
        """A word without white space inside, and the stop after it. Raises Malformed when it is none."""
        text, stop = yield from self.until(*stops, limit=LONGEST_NAME)
        name = text.strip().strip("\"'")
        if not name or any(character.isspace() for character in name):
            raise Malformed
        return name, stop

    def value(self, emit: Callable[[str], None] | None = None) -> Steps[str]:
        """Reads one JSON value and gives its text, in pieces to `emit` as they come.

        Control characters inside of strings, which models write and JSON forbids, are escaped. Raises Malformed when
        the text is no JSON.
        """
        first = yield from self.peek()
        parts: list[str] = []
        if first in '{["':
            yield from self._nested(parts, emit or _ignored)
        else:
            parts.append((yield from self.scalar(_SCALAR_ENDS)))
            if emit is not None:
                emit(parts[0])
        text = "".join(parts)
        decoded(text)
        return text

    def scalar(self, ends: "re.Pattern[str]") -> Steps[str]:
        """Text up to the first match of `ends`. Raises Malformed above LONGEST_SCALAR characters."""
        seen = 0  # characters that have no end among them: no piece of text has them searched again
        while (match := ends.search(self.held, seen)) is None:
            seen = len(self.held)
            if seen > LONGEST_SCALAR:
                raise Malformed
            yield from self.more()
        if match.start() > LONGEST_SCALAR:
            raise Malformed
        return self.cut(match.start())

    def _nested(self, parts: list[str], emit: Callable[[str], None]) -> Steps[None]:
        opened, quoted, sent, self_closed = list[str](), False, 0, False
        while not self_closed:
            match = (_IN_STRING if quoted else _STRUCTURE)(self.held)
            escape = match is not None and match[0] == "\\"
            if match is None or (escape and match.end() == len(self.held)):
                # A backslash waits for what it escapes, all before it continues.
                piece = self.cut(len(self.held) if match is None else match.start())
                if piece:
                    parts.append(escaped(piece) if quoted else piece)
                if sent < len(parts):
                    emit("".join(parts[sent:]))
                    sent = len(parts)
                yield from self.more()
                continue
            piece = self.cut(match.end() + escape)
            parts.append(escaped(piece) if quoted else piece)
            if match[0] == '"':
                quoted = not quoted
            elif match[0] in "{[":
                opened.append(match[0])
            elif not escape and opened.pop() != _PAIR[match[0]]:
                raise Malformed
            self_closed = not opened and not quoted
        emit("".join(parts[sent:]))


def decoded(text: str) -> object:
    """The value of a JSON text. Raises Malformed when it is none."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def escaped(text: str) -> str:
    """Text of a string with its control characters as JSON and Python write them."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _ignored(_: str) -> None:
    return None
