"""Reasoning in front of an answer that keeps to a form, and calls of tools instead.

Unlike `OutputParser` this one looks for no marker where the form has begun: a string of it may say anything.
"""

from typing import Literal

from .markers import markers
from .parser import OutputParser
from .segments import Content, Reasoning, Segment

State = Literal["begin", "reasoning", "gap", "choice", "answer"]


class BehindReasoning:
    """Feed it all text of a choice, then finish it. The same text gives the same result however it is cut.

    `opening`: what reasoning begins with, if there is any; empty: the prompt has begun it, unless `closing` is empty,
    too: then there is none. `rest`: reads what follows; None: that is content. `calls`: a marker, and what reads an
    answer that begins with it. `reasons`: it looks for reasoning.
    """

    def __init__(
        self,
        opening: str,
        closing: str,
        rest: OutputParser | None = None,
        calls: tuple[str, OutputParser] | None = None,
    ) -> None:
        self._opening, self._ends, self._rest, self._calls = opening, markers(closing), rest, calls
        self._held = ""
        self._state: State = "begin" if opening else "reasoning" if closing else "choice"
        self.reasons = bool(closing)
        self._fresh = True  # no reasoning yet

    def keep_calls(self, *, pieces: bool) -> None:
        """As of `OutputParser.keep_calls`."""
        for parser in (self._rest, self._calls[1] if self._calls is not None else None):
            if parser is not None:
                parser.keep_calls(pieces=pieces)

    @property
    def reasoning(self) -> bool:
        """Whether the text that has been fed ends inside of reasoning."""
        return self._state == "reasoning"

    @property
    def waiting(self) -> int:
        """Characters that a call with `most` has left unread."""
        return self._rest.waiting if self._rest is not None else 0

    def feed(self, text: str, most: int | None = None) -> list[Segment]:
        """What the next piece of text completes. `most`: as of `OutputParser.feed`."""
        if self._state == "answer":
            return self._answer(text, most)
        self._held += text
        found: list[Segment] = []
        if self._state == "begin":
            self._begin()
        if self._state == "reasoning":
            found += self._reasoning()
        if self._state == "gap":  # white space after a marker is no text
            self._held = self._held.lstrip()
            self._state = "choice" if self._held else "gap"
        if self._state == "choice":
            self._state = self._choice()
        if self._state == "answer":
            held, self._held = self._held, ""
            found += self._answer(held, most)
        return found

    def finish(self, reason: str = "stop", most: int | None = None) -> list[Segment]:
        """What the end of the text completes. `most`: as of `OutputParser.finish`."""
        held, self._held = self._held, ""
        found: list[Segment] = []
        if held:
            found += [Reasoning(held)] if self._state == "reasoning" else self._answer(held, most)
        return found + (self._rest.finish(reason, most) if self._rest is not None else [])

    def _begin(self) -> None:
        held = self._held
        if held.startswith(self._opening):
            self._held, self._state = held[len(self._opening) :], "reasoning"
        elif not self._opening.startswith(held):
            self._state = "choice"

    def _choice(self) -> State:
        """Whether calls come or the form, as soon as that can be said."""
        if self._calls is None:
            return "answer"
        marker, calls = self._calls
        if self._held.startswith(marker):
            self._rest = calls
        return "choice" if len(self._held) < len(marker) and marker.startswith(self._held) else "answer"

    def _reasoning(self) -> list[Segment]:
        if self._fresh:
            self._held = self._held.lstrip()
            self._fresh = not self._held
        end, marker = self._ends.find(self._held, False)
        text, self._held = self._held[:end], self._held[end + len(marker) :]
        if marker:
            self._state = "gap"
        return [Reasoning(text)] if text else []

    def _answer(self, text: str, most: int | None) -> list[Segment]:
        if self._rest is not None:
            return self._rest.feed(text, most)
        return [Content(text)] if text else []
