"""Whether text is reasoning: a thought continues after the calls in it, until its own end."""

from .grammars.base import Grammar
from .segments import Reasoning


class Thought:
    """`inside`: whether the text at this place is reasoning."""

    __slots__ = ("_again", "_channels", "_owed", "_within", "inside")

    def __init__(self, grammar: Grammar | None, inside: bool) -> None:
        self.inside = inside
        self._channels = grammar is not None and grammar.channels
        self._within = grammar.within if grammar is not None else ()
        self._owed = False  # the end marker of a call comes before that of the thought around it
        self._again: int | None = None  # the end of a broken call: the thought continues after a marker there

    def mark(self, inside: bool) -> None:
        """A marker of reasoning: a thought begins, or ends."""
        self.inside, self._owed, self._again = inside, False, None

    def read(self, grammar: Grammar, called: bool) -> None:
        """A region was read. `called`: it had a call; where a grammar owns reasoning, it may have been a header."""
        opened = self.inside or self._again is not None
        self.mark(grammar.kind is Reasoning or (opened and (called or not self._channels)))
        self._owed = opened and called

    def broken(self, end: int) -> None:
        """A region had a broken call, whose text up to the position `end` is content."""
        if self.inside or self._again is not None:
            self.inside, self._again = False, end

    def closing(self, marker: str, position: int) -> None:
        """A closing marker of calls, at this position."""
        if self._again is not None and position >= self._again:
            self.mark(True)
        elif marker not in self._within:
            self.inside = self.inside and (self._owed or not self._channels)
            self._owed = False
