"""Writes what a grammar has read: texts and calls, with their indices and ids."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

from .reader import Reader
from .segments import Arguments, CallStart, Content, Dropped, Reasoning, Segment, ToolSpec

Identify = Callable[[str, int], str]
"""The id of a call, of the choice's seed and the call's index."""


def long_id(seed: str, index: int) -> str:
    """`call_` and 24 hexadecimal digits."""
    return f"call_{blake2b(f'{seed}/{index}'.encode(), digest_size=12).hexdigest()}"


def short_id(seed: str, index: int) -> str:
    """Nine hexadecimal digits: templates of Mistral accept no other length."""
    return blake2b(f"{seed}/{index}".encode(), digest_size=5).hexdigest()[:9]


class Calls:
    """Segments that were not handed over yet (`out`), and the call that is being read.

    `pending`: a call has begun and is not complete. `open`: it was announced by a CallStart. `reason`: how the text has
    ended, once it has. `keeps_cut`: an answer of calls alone that its limit cuts off keeps what it has of a call.
    `started`: the reader's position where the open call was announced. `another`: this region has had a complete call.
    """

    def __init__(self, reader: Reader, tools: Sequence[ToolSpec], seed: str, identify: Identify) -> None:
        self.tools = {tool.name: tool.parameters for tool in tools}
        self.out: list[Segment] = []
        self.pending = self.open = False
        self.reason = ""
        self.keeps_cut = False
        self.started = 0
        self.another = False
        self._name = ""
        self._count = 0
        self._ids: set[str] = set()
        self._reader, self._seed, self._identify = reader, seed, identify

    def text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        """A piece of text, if it is any."""
        if text:
            self.out.append(kind(text))

    def begin(self) -> None:
        """A call begins here: when the text ends inside of it, that is said."""
        self.pending = True
        if self.another:
            self.text_begins()
            self.another = False

    def start(self, name: str, given: str = "") -> None:
        """The call's name is known. `given`: the id that the model wrote; used when no other call has it."""
        self.pending = self.open = True
        self._name = name
        self.started = self._reader.position
        number = self._count
        chosen = given if given and given not in self._ids else self._identify(self._seed, number)
        while chosen in self._ids:
            number += 1000
            chosen = self._identify(self._seed, number)
        self._ids.add(chosen)
        self.out.append(CallStart(self._count, chosen, name))

    def text_begins(self) -> None:
        """What has been read of the region is no text, whatever follows."""
        if self._reader.log is not None:
            self._reader.log = []

    def arguments(self, text: str) -> None:
        """A piece of the open call's arguments."""
        if text:
            self.out.append(Arguments(self._count, text))

    def done(self) -> None:
        """The open call is complete."""
        self.pending = self.open = False
        self._count += 1
        self._reader.log = []
        self.another = True

    def drop(self, why: str) -> None:
        """The pending call is none; with `keeps_cut` the first one ends here instead, or is text.

        After a complete call a cut one is dropped: clients decode the arguments of each call that they get.
        """
        kept = self.keeps_cut and why == "truncated" and self.reason == "length" and not self._count
        if kept and self.open:
            return self.done()
        if kept:
            self.pending = False
            return self.text(Content, "".join(self._reader.log or ()) + self._reader.held)
        self.out.append(Dropped(self._count if self.open else None, self._name if self.open else "", why))
        self._count += self.open
        self.pending = self.open = False
        return None
