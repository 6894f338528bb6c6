"""The server's side of HTTP: its models, its streams, and what its refusals mean here."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from dynamod.message.errors import BadRequest, EngineFailed, NotFound, Overloaded, RequestError, TooLarge
from dynamod.message.vectors import MOST_BYTES, pack, unit

from .arguments import OpenAIArguments

MODELS_TIMEOUT = 5.0
"""Seconds for the list of models, which is also the look at the server's health."""
BODY_TIMEOUT = 5.0
"""Seconds for the body of a refusal."""
SILENT = "upstream_silent"
"""The code of the error of a server that may be there, and says nothing."""
NO_VECTORS = "upstream_no_vectors"
"""The code of the error of a server that answers with something else."""
VECTORS = 6 * MOST_BYTES
"""Bytes of an answer with vectors: as JSON a number takes up to six times as much as packed."""
MODELS_BYTES = 8 * 1024 * 1024
"""Bytes of a list of models."""
_BODY = 64 * 1024
_QUOTED = 300


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _VectorUsage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _VectorUsage | None = None


def _vectors(answer: bytearray) -> tuple[tuple[bytes, ...], int | None]:
    found = msgspec.json.decode(answer, type=_Vectors)
    rows = sorted(found.data, key=lambda row: row.index)
    return tuple([pack(unit(row.embedding)) for row in rows]), found.usage.prompt_tokens if found.usage else None


_PATHS = {"chat": "/chat/completions", "completion": "/completions"}
LOST = (aiohttp.ClientError, OSError)
"""What the client library raises when a server is not there, or not there any more."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Mask:
    """Quotes what a server says, without its key: servers repeat the headers of a request in their errors."""

    def __init__(self, key: str) -> None:
        self._key = key

    def text(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def quoted(self, said: str | bytes, most: int = _QUOTED) -> str:
        """The beginning of what a server says, as one line. The key goes first, so that no part of it stays."""
        text = self.text(said.decode(errors="replace") if isinstance(said, bytes) else said)
        text = " ".join(text.split())
        return text if len(text) <= most else text[: most - 3] + "..."

    def message_of(self, error: Any) -> str:
        """What an error object says, as one line."""
        text = _text_in(error, "message") or _text_in(error, "detail")
        return self.quoted(text if text is not None else str(error))

    def error(self, error: RequestError) -> RequestError:
        """The same error for clients."""
        param, code = (value and self.text(value) for value in (error.param, error.code))
        return type(error)(self.text(str(error)), param=param, code=code, retry_after=error.retry_after)


class Upstream:
    """One server. `key`: sent as a bearer token, and never shown."""

    def __init__(self, arguments: OpenAIArguments, key: str) -> None:
        self.url, self.mask = arguments.url, Mask(key)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=arguments.connect_timeout),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def models(self) -> list[str]:
        """The names that it lists. Raises Overloaded (not there, or not ready), NotFound (no list), EngineFailed."""
        try:
            get = self._session.get(f"{self.url}/models", allow_redirects=False)
            async with asyncio.timeout(MODELS_TIMEOUT), get as response:
                if response.status != 200:
                    raise await self._refused(response)
                body = await self._start_of(response, MODELS_BYTES + 1)
        except LOST as error:
            raise self.lost(error) from None
        if len(body) > MODELS_BYTES:
            text = f"{self.url}/models answers with more than {MODELS_BYTES >> 20} MB"
            raise EngineFailed(text, code="upstream_no_list")
        try:
            return [model.id for model in msgspec.json.decode(body, type=_Models).data]
        except msgspec.MsgspecError:
            text = f"{self.url}/models is no list of models: {self.mask.quoted(body)}"
            raise EngineFailed(text, code="upstream_no_list") from None

    @asynccontextmanager
    async def stream(
        self, kind: str, body: bytes, trace: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The events of an answer; leaving it ends the request there, unless it was read to its end.

        `trace`: headers of the request's trace.

        Raises Overloaded when another instance may take it: the server is not there, or cannot take it now. Every
        other RequestError is the answer.
        """
        response = await self._post(_PATHS[kind], body, trace=trace)
        try:
            if response.status != 200:
                raise await self._refused(response)
            if "event-stream" not in (given := response.headers.get("Content-Type", "")):
                text = f"{self.url} answers with {given or 'no content type'}, not with a stream of events"
                start = await self._start_of(response, _BODY)
                raise EngineFailed(f"{text}: {self.mask.quoted(start)}", code="upstream_no_stream")
            yield response.content
        finally:
            response.close()  # returned to the pool already when it was read to its end

    async def vectors(self, body: bytes) -> tuple[tuple[bytes, ...], int | None]:
        """Packed vectors of length 1, in the order of the inputs, and tokens of these.

        Raises RequestError as `stream` does.
        """
        try:
            async with await self._post("/embeddings", body, "application/json") as response:
                if response.status != 200:
                    raise await self._refused(response)
                answer = bytearray()
                while more := await response.content.readany():
                    answer += more
                    if len(answer) > VECTORS:
                        text = f"{self.url}/embeddings answers with more than {VECTORS >> 20} MB"
                        raise EngineFailed(text, code=NO_VECTORS)
        except LOST as error:
            raise self.lost(error) from None
        try:
            return await asyncio.to_thread(_vectors, answer)  # many numbers would keep other answers waiting
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = f"{self.url}/embeddings answers with no vectors: {self.mask.quoted(bytes(answer[:_BODY]))}"
            raise EngineFailed(text, code=NO_VECTORS) from None
        except ValueError as error:
            raise EngineFailed(f"{self.url}/embeddings: {error}", code=NO_VECTORS) from None

    def lost(self, error: BaseException) -> Overloaded:
        """The server could not be reached, or has closed the connection."""
        if isinstance(error, TimeoutError):
            return Overloaded(f"{self.url} does not answer", code=SILENT)
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        number = cause.errno if isinstance(cause, OSError) else None
        reason = self.mask.text(os.strerror(number) if number and number > 0 else str(cause) or type(error).__name__)
        return Overloaded(f"{self.url} cannot be reached: {reason}", code="upstream_unreachable")

    async def _post(
        self, path: str, body: bytes, accept: str = "text/event-stream", trace: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "Accept": accept, **(trace or {})}
        try:
            try:
                return await self._session.post(self.url + path, data=body, headers=headers, allow_redirects=False)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if isinstance(error, aiohttp.ClientConnectorError):
                    raise
                # The server has closed a connection of the pool in the moment in which it was used again.
                return await self._session.post(self.url + path, data=body, headers=headers, allow_redirects=False)
        except LOST as error:
            raise self.lost(error) from None

    async def _refused(self, response: aiohttp.ClientResponse) -> RequestError:
        """What a status other than 200 means for the request."""
        status = response.status
        if 300 <= status < 400:  # prompts go to the server that the operator has named, to no other
            place = self.mask.quoted(response.headers.get("Location", ""))
            text = f"{self.url} answers {status}: it redirects to {place or 'no address'}, which is not followed"
            return EngineFailed(f"{text}; set `url` to the address that serves the API", code="upstream_redirects")
        said, param, code = self._said(await self._start_of(response, _BODY))
        text = self.mask.text(f"{self.url} answers {status}{f': {said}' if said else ''}")
        if status in (400, 422):
            return BadRequest(said or text, param=param, code=code)
        if status in (401, 403):
            return EngineFailed(text, code="upstream_unauthorized")
        if status == 404:
            return NotFound(text, param="model")
        if status == 413:
            return TooLarge(said or text)
        if status in (408, 409, 425, 429) or status >= 500:
            return Overloaded(text, code="upstream_overloaded" if status == 429 else "upstream_failed")
        return EngineFailed(text, code="upstream_refused")

    async def _start_of(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        data = bytearray()
        with contextlib.suppress(*LOST):
            async with asyncio.timeout(BODY_TIMEOUT):
                while len(data) < most and (more := await response.content.read(most - len(data))):
                    data += more
        return bytes(data)

    def _said(self, body: bytes) -> tuple[str, str | None, str | None]:
        """Message, param and code of a body that tells an error, in the forms that servers use."""
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.mask.quoted(body), None, None
        error = value.get("error", value) if isinstance(value, Mapping) else value
        return self.mask.message_of(error), _text_in(error, "param"), _text_in(error, "code")


def _text_in(error: Any, name: str) -> str | None:
    found = error.get(name) if isinstance(error, Mapping) else None
    return found if isinstance(found, str) else None
