"""Reads text that comes in pieces: what is read never depends on where the pieces were cut.

A grammar is a generator over a Reader. It yields where it needs more text, so its code reads like that of a parser
which has the whole text, and its state is the place where it waits.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import msgspec

from .markers import markers

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A parser that yields when it needs more text, and returns a T."""

Emit = Callable[[str], None]
"""Takes pieces of a text as they are read."""

SLICE_CHARS = 2048
"""The longest text that one step reads: what a step costs, and what `cut` copies, does not grow with the pieces."""
LONGEST_NAME = 256
LONGEST_SCALAR = 4000
_STRUCTURE = re.compile(r'["}\]]|[{\[]+').search
_IN_STRING = re.compile(r'["\\]').search
_PLAIN_STRING = re.compile(r'"[^"\\\x00-\x1f\ud800-\udfff]*+"').match
_TWO_WORDS = re.compile(r"\s*+\S++\s++\S").match
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

    def take(self, text: str) -> bool:
        """Makes a short text readable at once, where no other text waits. Returns whether it did."""
        if self.waiting or len(text) > SLICE_CHARS:
            return False
        self.held += text
        return True

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
        """The text that was read last, or stands for it, is unread again."""
        count = len(text)
        self.position -= count
        if count > SLICE_CHARS and self.log:
            self.log = [self.logged()[:-count]]
        while self.log and 0 < count <= SLICE_CHARS:
            last = self.log.pop()
            if len(last) > count:
                self.log.append(last[:-count])
            count -= min(count, len(last))
        self._unread(text)

    def logged(self) -> str:
        """What was logged."""
        if self.log is not None and len(self.log) > 1:
            self.log = ["".join(self.log)]
        return self.log[0] if self.log else ""

    def undo(self, kept: int = 0) -> None:
        """What was logged is unread again, except its first `kept` characters."""
        read = self.logged()[kept:]
        self.position -= len(read)
        self.log = None
        self._unread(read)

    def _unread(self, text: str) -> None:
        self.held = text + self.held
        if len(self.held) > SLICE_CHARS:
            text, self.held = self.held, self.held[:SLICE_CHARS]
            self._given.appendleft((text, SLICE_CHARS))
            self.waiting += len(text) - SLICE_CHARS
            self.closed = False

    def peek(self) -> Steps[str]:
        """The next character that is no white space; the white space is read."""
        held = self.held
        if held and not held[0].isspace():
            return held[0]
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
            held, found, longer = self.held, "", False
            for word in words:
                if held.startswith(word):
                    found = word if len(word) > len(found) else found
                elif word.startswith(held):
                    longer = True
            if self.closed and longer and not found:
                raise Ended
            if self.closed or not longer:
                return self.cut(len(found))
            yield

    def expect(self, *words: str) -> Steps[str]:
        """As `accept`; raises Malformed when it is none of them."""
        found = yield from self.accept(*words)
        if not found:
            raise Malformed
        return found

    def follows(self, *words: str) -> Steps[bool]:
        """Whether one of the words comes next, or the end of the text, after white space. None of it is read."""
        passed: list[str] = []
        found = True
        try:
            while not (rest := self.held.lstrip()):
                passed.append(self.cut(len(self.held)))
                yield from self.more()
            passed.append(self.cut(len(self.held) - len(rest)))
            passed.append((yield from self.accept(*words)))
            found = bool(passed[-1])
        except Ended:  # perhaps in the middle of a word
            pass
        self.back("".join(passed))
        return found

    def until(self, *stops: str, limit: int = 0, emit: Emit | None = None) -> Steps[tuple[str, str]]:
        """Text up to the next of the words, and that word. Raises Malformed above `limit` characters (0: none).

        `emit`: gets the text in pieces as they come, of the last one what the text ends with if no word comes.
        """
        parts: list[str] = []
        find, size = markers(*stops).find, 0
        while True:
            end, stop = find(self.held, self.closed)
            if not stop and self.closed:
                if emit is not None:
                    emit(self.cut(find(self.held, False)[0]))
                raise Ended
            if limit and size + end > limit:
                self.cut(limit + 1 - size)  # however the text was cut, the same is read, and so may be undone
                raise Malformed
            if stop:
                if emit is not None:
                    emit(text := self.cut(end))
                    self.cut(len(stop))
                else:
                    text = self.cut(end + len(stop))[:end]
                return "".join((*parts, text)) if parts else text, stop
            if end:
                parts.append(self.cut(end))
                size += end
                if emit is not None:
                    emit(parts[-1])
            yield

    def name(self, *stops: str, never: Sequence[str] = ()) -> Steps[tuple[str, str]]:
        """A word without white space inside, and the stop after it. Raises Malformed when it is none.

        `never`: words that no name has. What is read of a text that is no name is the same however it was cut.
        """
        find = markers(*stops, *never).find
        while True:
            end, stop = find(self.held, False)
            words = _TWO_WORDS(self.held, 0, end)
            least = min(words.end() if words is not None else end, LONGEST_NAME + 1)
            if least <= LONGEST_NAME and words is None and stop in stops:
                break
            if least > LONGEST_NAME or words is not None or stop:
                self.cut(least)
                raise Malformed
            yield from self.more()
        name = self.cut(end + len(stop))[:end].strip().strip("\"'")
        if not name:
            raise Malformed
        return name, stop

    def value(self, emit: Emit | None = None, *, checked: bool = True) -> Steps[str]:
        """Reads one JSON value and gives its text, in pieces to `emit` as they come. `checked`: it has to be JSON.

        Control characters inside of strings, which models write and JSON forbids, are escaped. Raises Malformed when
        the text is no JSON.
        """
        first = yield from self.peek()
        if first == '"' and emit is None and (match := _PLAIN_STRING(self.held)) is not None:
            return self.cut(match.end())
        parts: list[str] = []
        if first in '{["':
            yield from self._nested(parts, emit or _ignored)
        else:
            parts.append((yield from self.scalar(_SCALAR_ENDS)))
            if emit is not None:
                emit(parts[0])
        text = "".join(parts)
        if checked:
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

    def _nested(self, parts: list[str], emit: Emit) -> Steps[None]:
        opened, quoted, done = list[str](), False, False
        while True:
            held, at, begin, wrong = self.held, 0, 0, False
            escaping = _CONTROL.search(held) is not None
            found: list[str] = []
            while not done and not wrong:
                match = (_IN_STRING if quoted else _STRUCTURE)(held, at)
                if match is None:
                    at = len(held)
                    break
                mark, at = match[0], match.end()
                if mark == "\\":
                    if at == len(held):  # a backslash waits for what it escapes, all before it continues
                        at -= 1
                        break
                    at += 1
                    continue
                if mark == '"':
                    if escaping:
                        found.append(escaped(held[begin:at]) if quoted else held[begin:at])
                        begin = at
                    quoted = not quoted
                elif mark in _PAIR:
                    wrong = opened.pop() != _PAIR[mark]
                else:
                    opened += mark
                done = not opened and not quoted
            rest = held[begin:at]
            found.append(escaped(rest) if escaping and quoted else rest)
            self.cut(at)
            if piece := "".join(found):
                parts.append(piece)
                emit(piece)
            if wrong:
                raise Malformed
            if done:
                return
            yield from self.more()


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
