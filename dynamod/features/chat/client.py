"""The client of the frontend that the same command runs."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import DynamodError, UserError

if TYPE_CHECKING:
    import aiohttp

SILENCE = 620.0
"""Seconds without a byte after which an answer has failed; the server's own clocks end it before."""
CONNECT = 10.0
AGAIN = 1.0
"""Seconds until a frontend that could not be reached is tried again: it may be on its way back."""
UNREACHABLE_S = 60.0
"""Seconds for which the command's own frontend may be away, as while it is replaced."""
SAY_EVERY = 5.0
"""Seconds between two lines that say what is waited for."""


class Refused(DynamodError):
    """The server's own words. `retry_after`: seconds, when it says that it will have room."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(slots=True)
class Answer:
    """What is known at the end of a stream: text, token counts by the server, why it ended, seconds it took."""

    pieces: list[str] = field(default_factory=list[str])
    tokens_in: int = 0
    tokens_out: int = 0
    finish: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All that came."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer of the server. `request`: its id. `retry_after`: seconds, when it says that it will have room."""

    status: int
    body: dict[str, Any]
    request: str
    retry_after: float | None = None

    def chosen(self) -> dict[str, Any]:
        """The first choice. Raises Refused with the server's words."""
        if self.status != 200:
            raise Refused(self.body["error"]["message"])
        choice: dict[str, Any] = self.body["choices"][0]
        return choice

    def tokens(self, which: str) -> int:
        """A count of its usage; 0 when the server has not said."""
        return int((self.body.get("usage") or {}).get(which) or 0)


@asynccontextmanager
async def chat_client(url: str, key: str, fields: Mapping[str, Any]) -> "AsyncIterator[ChatClient]":
    """A session with the frontend at `url`. `fields` go with every request."""
    import aiohttp

    async with aiohttp.ClientSession(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE),
        connector=aiohttp.TCPConnector(limit=0),
    ) as session:
        yield ChatClient(session, fields)


class ChatClient:
    """Asks in a session; see `chat_client`."""

    def __init__(self, session: "aiohttp.ClientSession", fields: Mapping[str, Any]) -> None:
        self._session, self._fields = session, fields

    async def models(self) -> list[str]:
        """Names of the models that can be asked now."""
        async with self._session.get("/v1/models") as response:
            return [model["id"] for model in (await response.json())["data"]]

    async def model(self, wanted: str, *, others: bool = True) -> str:
        """The model called `wanted`, or the first that comes. Says every few seconds that it waits.

        `others`: workers of other commands may bring it; else UserError when the models that are there lack it. Raises
        UserError also for a frontend that cannot be reached.
        """
        import aiohttp

        said = reached = time.monotonic()
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # it is being replaced; or all ends
                async with asyncio.timeout(CONNECT):
                    names = await self.models()
                reached = time.monotonic()
                if wanted in names or (names and not wanted):
                    return wanted or names[0]
                if names and not others:
                    raise UserError(f"no worker here serves {wanted}", f"it serves {', '.join(names)}")
            if time.monotonic() - reached >= UNREACHABLE_S:
                text = f"the frontend that this command runs has not answered for {UNREACHABLE_S:g} s"
                raise UserError(text, "see dynamo logs, and whether a firewall closes the loopback interface")
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                what = wanted or "a model"
                print(f"waiting for a worker that serves {what} (Ctrl-C to leave)", file=sys.stderr, flush=True)
            await asyncio.sleep(0.1)

    async def post(self, url: str, body: Mapping[str, Any]) -> Response:
        """Ask without a stream; the server's own clocks end it. Raises Refused, to be tried again, when none comes."""
        import aiohttp

        patient = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        try:
            async with self._session.post(url, json=body, timeout=patient) as response:
                wait, request = response.headers.get("Retry-After"), response.headers.get("x-request-id", "")
                return Response(response.status, await response.json(), request, float(wait) if wait else None)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(f"the frontend is gone: {error or type(error).__name__}", AGAIN) from None

    async def show(self, model: str, messages: Sequence[Mapping[str, str]], answer: Answer) -> None:
        """Print an answer as it comes. Raises as `ask`."""
        async for piece in self.ask(model, messages, answer):
            sys.stdout.write(piece)
            sys.stdout.flush()

    async def ask(self, model: str, messages: Sequence[Mapping[str, str]], answer: Answer) -> AsyncIterator[str]:
        """Stream one chat answer; `answer` is filled meanwhile. Raises Refused, also in mid-answer."""
        import aiohttp

        body = {**self._fields, "model": model, "messages": list(messages), "stream": True}
        body["stream_options"] = {"include_usage": True}
        began = time.monotonic()
        try:
            async with self._session.post("/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    wait = response.headers.get("Retry-After")
                    message = (await response.json())["error"]["message"]
                    raise Refused(message, float(wait) if wait is not None else None)
                async for data in _events(response.content):
                    if data == "[DONE]":
                        return
                    for piece in _take(json.loads(data), answer):
                        yield piece
            raise Refused("the answer ended before its end")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Refused(f"the frontend is gone: {error or type(error).__name__}") from None
        finally:
            answer.seconds = time.monotonic() - began


async def _events(content: "aiohttp.StreamReader") -> AsyncIterator[str]:
    """The data of each event, whose frames our own server writes as one line."""
    async for line in content:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip("\n")


def _take(event: dict[str, Any], answer: Answer) -> list[str]:
    if "error" in event:
        raise Refused(event["error"]["message"])
    if usage := event.get("usage"):
        answer.tokens_in, answer.tokens_out = usage["prompt_tokens"], usage["completion_tokens"]
    choices = event.get("choices", ())
    pieces = [piece for choice in choices if (piece := choice["delta"].get("content"))]
    for choice in choices:
        answer.finish = choice.get("finish_reason") or answer.finish
    answer.pieces += pieces
    return pieces
