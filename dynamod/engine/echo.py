"""The echo engines: they answer with the prompt, at a set speed. For tests, benchmarks and a first look.

`echo_core` comes after the preprocessor and returns the prompt's token ids; `echo_full` takes the request as it came
and returns the last user message character by character. `DYN_TOKEN_ECHO_DELAY_MS` (default 10) is the time between
tokens; 0 means as fast as the loop turns. Every step serves all running streams, as a batching engine does.
"""

import asyncio
import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.message import tokens
from dynamod.message.discovery import Capabilities
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.openai import Message
from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Reply

from .base import Engine, EngineOptions, EngineStatistics, RequestT, Spawn
from .step_clock import StepClock

DELAY = "DYN_TOKEN_ECHO_DELAY_MS"


@dataclass(slots=True)
class _Stream:
    """`pieces`: what an answer is made of, packed token ids or characters; `position` to before `end` are to come."""

    reply: Reply
    pieces: Any
    position: int
    end: int
    finish: str
    prompt: int


class _Echo(Engine[RequestT]):
    """Steps through the pieces of all running streams; a subclass says how to send one."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._streams: list[_Stream] = []
        self._work = asyncio.Event()
        self._clock = StepClock()
        self._tokens = 0

    async def start(self) -> None:
        """Read the delay and begin to step. Raises UserError."""
        self._delay = _delay()
        self.spawn(self._run(), "steps")

    def statistics(self) -> EngineStatistics:
        """Each stream is one token of a step."""
        clock, running = self._clock, len(self._streams)
        return EngineStatistics(running, 0, self._tokens, clock.steps, *(clock.current or ()))

    def _add(self, stream: _Stream) -> None:
        self._streams.append(stream)
        self._work.set()

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        due = now()
        while True:
            if not self._streams:
                self._work.clear()
                await self._work.wait()
                due = now()
            due += self._delay
            await asyncio.sleep(max(0.0, due - now()))
            self._clock.begin(len(self._streams))
            self._streams = [stream for stream in self._streams if self._step(stream)]
            self._clock.end()

    def _step(self, stream: _Stream) -> bool:
        """Send the next piece; False when there are no more."""
        if stream.reply.cancelled:
            return False
        position = stream.position
        stream.position += 1
        finish = stream.finish if stream.position >= stream.end else None
        self._send(stream, position, finish)
        self._tokens += 1
        return finish is None

    @abstractmethod
    def _send(self, stream: _Stream, position: int, finish: str | None) -> None: ...


def _delay() -> float:
    """Seconds between tokens, from the environment. Raises UserError."""
    text = os.environ.get(DELAY, "10")
    try:
        delay = float(text) / 1000
    except ValueError:
        raise UserError(f"{DELAY}={text} is no number", "give milliseconds, for example 1") from None
    if not 0 <= delay < 1e6:
        raise UserError(f"{DELAY}={text} is out of range", "give milliseconds from 0 upwards")
    return delay


class EchoCore(_Echo[Generate]):
    """Echoes token ids; clients see the whole prompt, with the marks of its template."""

    name = "echo_core"
    serves = (Generate,)
    capabilities = Capabilities(exact_continuation=True, seed=True, deterministic=True, min_tokens=True, verbatim=True)

    async def start(self) -> None:
        """Read the model's card; weights are not needed."""
        self._card = await self._model_card()
        await super().start()

    def submit(self, request: Generate, reply: Reply) -> None:
        """Echo the prompt from where another instance stopped, up to max_tokens; over again for min_tokens."""
        prompt = tokens.count(request.token_ids)
        limit = request.stops.max_tokens
        whole = max(prompt, request.stops.min_tokens or 0) if prompt else 0
        end = whole if limit is None else min(limit, whole)
        done = tokens.count(request.prior_output)
        finish = "stop" if end == whole else "length"
        if done >= end:
            reply.tokens(b"", 0, finish)
        else:
            self._add(_Stream(reply, request.token_ids, done, end, finish, prompt))

    def _send(self, stream: _Stream, position: int, finish: str | None) -> None:
        start = position % stream.prompt * 4  # packed int32
        stream.reply.tokens(stream.pieces[start : start + 4], 1, finish)


class EchoFull(_Echo[Chat]):
    """Echoes text, one character per token; needs no model."""

    name = "echo_full"
    serves = (Chat,)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._card = self._card_without_files(self.name, kind="text")

    def submit(self, request: Chat, reply: Reply) -> None:
        """Echo the last user message (chat) or the prompt (completion)."""
        text = _last_user_text(request)
        end = len(text) if request.max_tokens is None else min(request.max_tokens, len(text))
        finish = "stop" if end == len(text) else "length"
        if end == 0:
            reply.text("", 0, finish, len(text))
        else:
            self._add(_Stream(reply, text, 0, end, finish, len(text)))

    def _send(self, stream: _Stream, position: int, finish: str | None) -> None:
        prompt = stream.prompt if finish else None
        stream.reply.text(stream.pieces[position], 1, finish, prompt)


class _Body(msgspec.Struct):
    messages: list[Message] = []
    prompt: Any = None


def _last_user_text(request: Chat) -> str:
    """Raises BadRequest."""
    field = "messages" if request.kind == "chat" else "prompt"
    try:
        body = msgspec.json.decode(request.body, type=_Body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the request cannot be read: {error}", param=field) from None
    users = [message for message in body.messages if message.role == "user"] or body.messages
    text = body.prompt if field == "prompt" else users[-1].content if users else None
    if field == "messages" and isinstance(text, list):
        text = "".join(part.text or "" for part in text)
    if not isinstance(text, str):
        raise BadRequest("echo_full needs text to echo", param=field)
    return text
