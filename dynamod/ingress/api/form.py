"""In which words an endpoint answers with text: what differs between the routes of OpenAI's API."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dynamod.ingress.base import Logprob

_LOWEST = -9999.0  # JSON has no minus infinity


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object. `total_tokens`: both together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> "Usage":
        """The usage of an answer with so many tokens."""
        return cls(prompt, completion, prompt + completion)


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats. `id` is without the prefix of the form."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete choice. `extra`: what a text engine said beside the text, merged from its chunks."""

    index: int
    text: str
    reason: str | None
    logprobs: dict[str, Any] | None
    extra: Mapping[str, Any]


class Form(ABC):
    """The JSON of one route. `first`: nothing of the choice has been sent yet."""

    id_prefix: ClassVar[str]
    chunk_object: ClassVar[str]
    text_suffix: ClassVar[bytes]  # what closes `text_prefix` behind the text

    @abstractmethod
    def text_prefix(self, index: int, first: bool) -> bytes:
        """The JSON of a chunk's choice up to its text."""

    @abstractmethod
    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The members of a chunk's choice that carry text."""

    @abstractmethod
    def ending(self, first: bool) -> dict[str, Any]:
        """The members of a choice's last chunk, which carries the finish reason."""

    @abstractmethod
    def part(self, part: Mapping[str, Any], first: bool) -> dict[str, Any] | None:
        """The members for a choice in a text engine's own chunk; None: it says nothing."""

    @abstractmethod
    def logprobs(self, entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
        """Log probabilities; `offset`: characters of the answer's text before the first entry."""

    @abstractmethod
    def whole(self, head: Head, choices: Sequence[Finished], usage: Usage, nvext: Any) -> msgspec.Struct:
        """The answer in one piece. `nvext`: UNSET, or what it says beside the choices."""


def finite(value: float) -> float:
    """A log probability that JSON can say."""
    return value if value > _LOWEST else _LOWEST
