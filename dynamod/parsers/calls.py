"""Writes what a grammar has read: texts and calls, with their indices and ids."""

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from .markers import Markers
from .reader import Reader
from .segments import Arguments, Broken, CallStart, Content, Dropped, Reasoning, Segment, ToolSpec

_NAME = re.compile(r"[^\s\"{}]+").fullmatch
Identify = Callable[[str, int], str]
"""The id of a call, of the choice's seed and the call's index."""


def long_id(seed: str, index: int) -> str:
    """`call_` and 24 hexadecimal digits."""
    return f"call_{blake2b(f'{seed}/{index}'.encode(), digest_size=12).hexdigest()}"


def short_id(seed: str, index: int) -> str:
    """Nine hexadecimal digits: templates of Mistral accept no other length."""
    return blake2b(f"{seed}/{index}".encode(), digest_size=5).hexdigest()[:9]


class CallRules(NamedTuple):
    """What becomes of calls that are none.

    `keeps_cut`: an answer of calls alone that its limit cuts off keeps what it has of a call. `stays`: a broken call
    stays, with the text that the model wrote as its arguments. `pieces`: so does one that is cut off: the client has
    seen its beginning.
    """

    keeps_cut: bool = False
    stays: bool = False
    pieces: bool = False


class Certain:
    """Finds which arguments of the open call are certain, whatever follows.

    `ends`: markers of which the first ends a broken call: text after it is no argument until the call is complete.
    `covered`: the reader's position up to which the arguments have what was read. `doubtful`: they have an end marker.
    `announced`: the call was handed over; a broken one stays from then on, if such calls stay.
    """

    def __init__(self) -> None:
        self.ends: Markers | None = None
        self.covered = 0
        self.doubtful = self.announced = False
        self._held: list[str] = []

    def begin(self, position: int) -> None:
        """The next arguments begin at a position of the reader."""
        self._held, self.doubtful, self.covered = [], False, position

    def more(self, text: str, position: int) -> str:
        """More arguments, read up to a position. Returns the arguments that are certain now."""
        self.covered = position
        if self.ends is None:
            return text
        self._held.append(text)
        if self.doubtful:
            return ""
        text = self.held()
        at, marker = self.ends.find(text, False)
        self.doubtful = bool(marker)
        self._held = [text[at:]] if at < len(text) else []
        return text[:at]

    def held(self) -> str:
        """Arguments that are not certain."""
        return "".join(self._held)


class Calls:
    """Segments that were not handed over yet (`out`), and the call that is being read.

    `pending`: a call has begun and is not complete. `open`: it was announced by a CallStart. `reason`: how the text has
    ended, once it has. `started`: the reader's position where the call has begun, or its name was complete. `certain`:
    its arguments. `another`: this region has had a complete call. `count`: calls that are complete, or were dropped.
    """

    def __init__(self, reader: Reader, tools: Sequence[ToolSpec], seed: str, identify: Identify) -> None:
        self.tools = {tool.name: tool.parameters for tool in tools}
        self.out: list[Segment] = []
        self.pending = self.open = False
        self.reason = ""
        self.rules = CallRules()
        self.certain = Certain()
        self.started = 0
        self.another = False
        self._start = CallStart(0, "", "")  # of the open call
        self.count = 0
        self._ids: set[str] = set()
        self._reader, self._seed, self._identify = reader, seed, identify

    @property
    def stays(self) -> bool:
        """Whether the open call stays although it is broken."""
        return self.rules.stays and self.open and self.certain.announced

    def text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        """A piece of text, if it is any."""
        if text:
            self.out.append(kind(text))

    def begin(self) -> None:
        """A call begins here: when the text ends inside of it, that is said."""
        self.pending = True
        self.started = self._reader.position
        if self.another:
            self.text_begins()
            self.another = False

    def names(self, name: str) -> bool:
        """Whether a text may be a tool's name: one quote too many makes one of all that follows it."""
        return name in self.tools or _NAME(name) is not None

    def start(self, name: str, given: str = "") -> None:
        """The call's name is known. `given`: the id that the model wrote; used when no other call has it."""
        self.pending = self.open = True
        self.started = self._reader.position
        self.certain.begin(self.started)
        self.certain.announced = False
        number = self.count
        chosen = given if given and given not in self._ids else self._identify(self._seed, number)
        while chosen in self._ids:
            number += 1000
            chosen = self._identify(self._seed, number)
        self._ids.add(chosen)
        self._start = CallStart(self.count, chosen, name)
        if not self.rules.stays:
            self._announce()

    def _announce(self) -> None:
        if not self.certain.announced:
            self.certain.announced = True
            self.out.append(self._start)

    def text_begins(self) -> None:
        """What has been read of the region is no text, whatever follows."""
        if self._reader.log is not None:
            self._reader.log = []

    def arguments(self, text: str, unread: int = 0) -> None:
        """A piece of the open call's arguments. `unread`: the last characters that were read are not in it."""
        if text:
            self._announce()
        if text and (text := self.certain.more(text, self._reader.position - unread)):
            self.out.append(Arguments(self.count, text))

    def broken(self, why: str, text: str = "") -> None:
        """The open call ends here, and its arguments are what the model wrote. `text`: the rest of them."""
        name, number = self._start.name, self.count
        self._announce()
        self.certain.begin(0)
        if text:
            self.out.append(Arguments(number, text))
        self.done()
        self.out.append(Broken(number, name, why))

    def done(self) -> None:
        """The open call is complete."""
        self._announce()
        if text := self.certain.held():
            self.out.append(Arguments(self.count, text))
        self.pending = self.open = False
        self.count += 1
        self._reader.log = []
        self.another = True

    def drop(self, why: str) -> None:
        """The pending call is none; with `keeps_cut` the first one ends here instead, or is text.

        After a complete call a cut one is dropped: clients decode the arguments of each call that they get.
        """
        kept = self.rules.keeps_cut and why == "truncated" and self.reason == "length" and not self.count
        if kept and self.open:
            return self.done()
        if kept:
            self.pending = False
            return self.text(Content, "".join(self._reader.log or ()) + self._reader.held)
        said = self.open and self.certain.announced
        if self.rules.pieces and said:
            return self.broken(why)
        self.out.append(Dropped(self.count if said else None, self._start.name if self.open else "", why))
        self.count += said
        self.pending = self.open = False
        return None
