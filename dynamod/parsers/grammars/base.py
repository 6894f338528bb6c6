"""What a grammar of tool calls has to say about itself."""

from abc import ABC, abstractmethod
from typing import ClassVar

from ..calls import Calls, Identify, long_id
from ..reader import Reader, Steps
from ..segments import Content, Reasoning
from ..writing import Writing

PROMPT_CHARS = 200
"""Characters at a prompt's end that show what it has begun."""


class Grammar(ABC):
    """Reads calls from the text of one choice.

    `openings`: markers in front of calls. `closings`: markers after them, which are never content. `weak`: openings
    that are words, so that reasoning may have them. `bare`: characters with which a call begins where no marker is in
    front of it. `quoted`: arguments have their strings in quotes, so that one quote too many hides what follows it.
    `ends`: markers in front of which such a call is broken; none: all markers. `identify`: how ids are made.
    `channels`: the grammar owns reasoning too, and `kind` is that of the text after what was read last. `within`:
    closings that do not end its reasoning. `prompts`: what a prompt may end with that a text continues from.
    `suffixes`: checkpoints put a suffix into the tags. `writing`: how calls are written; None: the format owns all of
    an answer.
    """

    openings: ClassVar[tuple[str, ...]] = ()
    closings: ClassVar[tuple[str, ...]] = ()
    weak: ClassVar[bool] = False
    bare: ClassVar[str] = ""
    quoted: ClassVar[bool] = False
    ends: ClassVar[tuple[str, ...]] = ()
    channels: ClassVar[bool] = False
    within: ClassVar[tuple[str, ...]] = ()
    prompts: ClassVar[tuple[str, ...]] = ()
    suffixes: ClassVar[bool] = False
    writing: ClassVar[Writing | None] = None
    identify: ClassVar[Identify] = staticmethod(long_id)

    def __init__(self, reader: Reader, calls: Calls) -> None:
        self.reader, self.calls = reader, calls
        self.kind: type[Content | Reasoning] = Content

    @classmethod
    def suffixed(cls, suffix: str) -> "type[Grammar]":
        """The grammar with this suffix in its tags, where checkpoints put one there."""
        return cls

    def inner_words(self) -> tuple[str, ...]:
        """Words with which a call of these tools may begin after text."""
        return ()

    @classmethod
    def begun(cls, prompt: str) -> str:
        """The end of a prompt that the text continues from; empty: it begins anew."""
        tail = prompt[-PROMPT_CHARS:].rstrip()
        return next(filter(tail.endswith, cls.prompts), "")

    @classmethod
    def call_ends(cls) -> tuple[str, ...]:
        """Markers that end a call whose quotes are wrong."""
        return (cls.ends or (*cls.closings, *cls.openings)) if cls.quoted else ()

    @classmethod
    def outer_ends(cls) -> tuple[str, ...]:
        """Markers up to which a broken call goes."""
        return cls.call_ends() or cls.ends or (*cls.closings[:1], *cls.openings)

    def name(self, *stops: str) -> Steps[tuple[str, str]]:
        """A tool's or a parameter's name, and the stop after it. Raises Malformed where another marker comes first."""
        return self.reader.name(*stops, never=(*self.openings, *self.closings))

    @abstractmethod
    def read(self, opening: str) -> Steps[None]:
        """Reads the calls after an opening marker ("": there is none, and the next character is one of `bare`).

        It may leave closing markers unread. Raises Malformed when no call follows, and Ended when the text is over.
        """
