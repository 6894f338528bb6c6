"""What a parser of a model's text gives: reasoning, content and calls, in the order in which the model said them."""

from collections.abc import Iterable
from typing import Any

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that the request offers: its name and the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any] = {}


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins. `index` counts from 0 in the choice."""

    index: int
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


class Dropped(msgspec.Struct, frozen=True):
    """A call that is not one. `index`: of the CallStart that is withdrawn; None when none was given.

    `why`: "truncated" (the text ended inside of it) or "malformed" (its arguments are no JSON object).
    """

    index: int | None
    name: str
    why: str


class Broken(msgspec.Struct, frozen=True):
    """The call stays, and its arguments are no JSON object: they are the text that the model wrote. `why`: as above."""

    index: int
    name: str
    why: str


Segment = Reasoning | Content | CallStart | Arguments | Dropped | Broken


class Call(msgspec.Struct, frozen=True):
    """A whole call. `arguments` is the JSON text of an object, unless a `Broken` note follows it."""

    index: int
    id: str
    name: str
    arguments: str


def assemble(segments: Iterable[Segment]) -> list[Reasoning | Content | Call | Dropped | Broken]:
    """Pieces put together, in order: neighbouring texts are one, calls that were dropped are only their notes."""
    pieces: list[list[Any]] = []  # class or CallStart, and texts
    calls: dict[int, list[Any]] = {}
    for segment in segments:
        if isinstance(segment, CallStart):
            calls[segment.index] = [segment]
            pieces.append(calls[segment.index])
        elif isinstance(segment, Arguments):
            calls[segment.index].append(segment.text)
        elif isinstance(segment, Dropped | Broken):
            if isinstance(segment, Dropped) and segment.index is not None:
                calls[segment.index].clear()
            pieces.append([segment])
        elif pieces and pieces[-1] and pieces[-1][0] is type(segment):
            pieces[-1].append(segment.text)
        else:
            pieces.append([type(segment), segment.text])
    made: list[Reasoning | Content | Call | Dropped | Broken] = []
    for head, *texts in filter(None, pieces):
        if isinstance(head, CallStart):
            made.append(Call(head.index, head.id, head.name, "".join(texts)))
        else:
            made.append(head if isinstance(head, Dropped | Broken) else head("".join(texts)))
    return made
