"""From a server's events to the deltas of our reply."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dynamod.message.errors import EngineFailed
from dynamod.message.openai import REASONING_NAMES
from dynamod.transport.base import Reply

from .upstream import Mask

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event: a server that sends more without an end of line sends no events."""
_PLAIN = ("content", "role")
_REASONS = {"eos": "stop", "stop_sequence": "stop", "max_tokens": "length"}
"""What some servers say instead of OpenAI's finish reasons."""


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: Any = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None

    def details(self, reasoning: int) -> dict[str, Any]:
        """What is passed on to the client. `reasoning`: tokens counted here, for servers that count none."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        if completion is None and reasoning:
            completion = {"reasoning_tokens": reasoning}
        found = {"prompt_tokens_details": prompt, "completion_tokens_details": completion}
        return {name: value for name, value in found.items() if value}


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """One answer on its way to the reply.

    Content is text, which the ingress counts and compares with stop strings as for every text engine. A chunk that says
    something else too (tool calls, reasoning, log probabilities) continues as it came. Each chunk counts as a token,
    except the last one that `limit` allows: the exact counts come with the usage, at the end. `finish`: the server's
    reason, from which on only the usage is waited for. `mask`: hides the server's key.
    """

    def __init__(self, reply: Reply, limit: int | None, mask: Mask | None = None) -> None:
        self._reply, self._mask = reply, mask or Mask("")
        self._most = limit - 1 if limit is not None else None
        self._rest = b""
        self._usage = _Usage()
        self.count = self.chunks = 0  # tokens so far; chunks of the answer so far
        self._reasoning = 0  # tokens
        self.finish: str | None = None
        self.over = False

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream. Raises EngineFailed for what is no event of an answer."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:") and not self.over:
                self._event(line[5:].strip())
        if len(self._rest) > MAX_EVENT:
            raise EngineFailed("the server sent an event without an end", code="upstream_no_stream")

    def end(self) -> None:
        """Nothing more comes, or is waited for: say the reason and the exact counts."""
        if self.over:
            return
        self.over = True
        total = self._usage.completion_tokens
        rest = max(0, (self.chunks if total is None else total) - self.count)
        self.count += rest
        if details := self._usage.details(self._reasoning):
            self._reply.items(({"choices": [], "usage": details},))
        self._reply.text("", rest, self.finish or "stop", self._usage.prompt_tokens)

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.end()
            return
        try:
            chunk = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            start = self._mask.quoted(data, 100)
            raise EngineFailed(
                f"the server sent no OpenAI chunk ({error}): {start}", code="upstream_no_stream"
            ) from None
        if chunk.error:
            raise EngineFailed(
                f"the server ended the answer: {self._mask.message_of(chunk.error)}", code="upstream_failed"
            )
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.choices:
            self._choice(chunk.choices[0])

    def _choice(self, choice: _Choice) -> None:
        delta, content, more = choice.delta, choice.text, False
        if content is None and delta is not None:
            content = delta.get("content")
            more = (len(delta) > 1 or content is None) and any(
                value for name, value in delta.items() if name not in _PLAIN
            )
        if content or more:
            self._send(choice, content, more)
        if choice.finish_reason:
            self.finish = _REASONS.get(choice.finish_reason, choice.finish_reason)

    def _send(self, choice: _Choice, content: Any, more: bool) -> None:
        self.chunks += 1
        count = 1 if self._most is None or self.count < self._most else 0
        self.count += count
        if not more and not choice.logprobs and isinstance(content, str):
            # An ingress that ends the answer before the server does has the prompt's count, where each chunk tells it.
            self._reply.text(content, count, None, self._usage.prompt_tokens)
            return
        if count:
            self._reply.text("", count)
        if choice.delta and any(choice.delta.get(name) for name in REASONING_NAMES):
            self._reasoning += count
        said: Mapping[str, Any] = {"delta": choice.delta} if choice.text is None else {"text": choice.text}
        self._reply.items(({"choices": [{**said, "logprobs": choice.logprobs}]},))
