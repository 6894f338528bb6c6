"""What endpoints share whose answers are made of vectors of texts: how these are collected, and the usage."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from aiohttp import web

from dynamod.http.metrics import ModelMetrics
from dynamod.ingress.api.endpoint import EngineEndpoint
from dynamod.ingress.api.response import ResponseWriter
from dynamod.message.errors import EngineFailed
from dynamod.message.openai import EngineFields

from .lowering import check_options

E = TypeVar("E", bound=EngineFields)
Row = TypeVar("Row")


class VectorUsage(msgspec.Struct, frozen=True):
    """Tokens of all texts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class VectorEndpoint(EngineEndpoint[E]):
    """Answers with vectors, or with what they say of texts."""

    request: ClassVar[type[EngineFields]]

    def check(self, request: E) -> None:
        """What speaks of answers is refused."""
        check_options(request)

    @abstractmethod
    def answer_of(self, request: E, job_id: str, rows: list[Any], usage: VectorUsage) -> msgspec.Struct:
        """The whole answer."""


class VectorWriter(ResponseWriter, Generic[Row]):
    """Takes one packed vector per text, and answers when all are there.

    `expected`: how many. `row`: what is kept of a vector, made when it comes, so that no turn of the loop makes them
    all; raises ValueError or TypeError for what is none. `make`: the answer of all rows, in the order of the texts.
    """

    def __init__(
        self,
        meter: ModelMetrics,
        begun: float,
        expected: int,
        row: Callable[[bytes], Row],
        make: Callable[[list[Row], VectorUsage], Any],
    ) -> None:
        super().__init__(meter, begun)
        self._expected, self._row, self._make = expected, row, make
        self._rows: list[list[Row]] = []  # by choice, which is a group of texts

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """There are so many groups."""
        if self.open and not self.choices:
            self._rows = [[] for _ in range(choices)]
        super().started(choices, prompt_tokens, annotations)

    def text(self, index: int, text: str, tokens: int) -> None:
        """Engines that count have no text here."""

    def chunk(self, index: int, chunk: Any) -> None:
        """Take a vector."""
        if not self.open:
            return
        self.tick(self.choices[index], 0)
        try:
            self._rows[index].append(self._row(chunk))
        except (TypeError, ValueError, BufferError) as error:
            self.fail(EngineFailed(f"the engine sent something that is no vector: {error}"))

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the last vector and send the answer."""
        return await self.in_one_piece(self._answer, headers)

    def rows(self) -> list[Row]:
        """All of them. Raises EngineFailed when some are missing."""
        rows = [row for group in self._rows for row in group]
        if len(rows) != self._expected:
            raise EngineFailed(f"the engine made {len(rows)} vectors of {self._expected} texts")
        return rows

    def vector_usage(self) -> VectorUsage:
        """What the answer has used."""
        return VectorUsage(self.prompt_tokens, self.prompt_tokens)

    def _answer(self) -> Any:
        return self._make(self.rows(), self.vector_usage())
