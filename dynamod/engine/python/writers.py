"""What a user's engine yields, as deltas of its reply: token ids in dicts, or OpenAI chunks."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dynamod.message import tokens, vectors
from dynamod.message.errors import EngineFailed, UserError
from dynamod.transport.base import Reply

from .plain import plain

_encode = msgspec.msgpack.Encoder().encode

FINISH = {"stop": "stop", "eos": "stop", "length": "length", "content_filter": "content_filter"}
"""NVIDIA Dynamo's finish reasons as OpenAI's."""
AFTER_FINISH = 1.0
"""Seconds that a chunk with the usage may come after the one with the finish reason."""


class CallWriter:
    """Takes whatever an endpoint without a model yields."""

    def __init__(self, reply: Reply, name: str) -> None:
        self._reply, self._name = reply, name

    def take(self, item: Any) -> float | None:
        """Send one item. Raises EngineFailed for what is no JSON-like value."""
        self._reply.items((sendable(item, self._name),))
        return None

    def end(self) -> None:
        """The handler is done."""
        self._reply.items((), "stop")


class TokenWriter:
    """Takes LLMEngineOutput dicts of a Backend engine. `room`: tokens that may come at most, None without a limit."""

    def __init__(self, reply: Reply, name: str, room: int | None) -> None:
        self._reply, self._name, self._room = reply, name, room
        self.count = 0
        self._said = False  # tokens of the prompt that were cached

    def take(self, item: Any) -> float | None:
        """Send one item; see `handler.Take`. Raises EngineFailed that names what is wrong."""
        if not isinstance(item, dict):
            given, item = item, sendable(item, self._name)
            if not isinstance(item, dict):
                raise EngineFailed(f"{self._name} yielded {quoted(given)}: a dict with token_ids is needed")
        ids, reason = item.get("token_ids"), item.get("finish_reason")
        if ids is None and reason is None:
            keys = ", ".join(map(str, item)) or "nothing"
            raise EngineFailed(f"{self._name} yielded a dict with neither token_ids nor finish_reason; it has: {keys}")
        if not self._said and isinstance(item.get("completion_usage"), Mapping):
            self._usage(item["completion_usage"])
        packed = self._pack(() if ids is None else ids)
        finish = self._finish(reason)
        if packed or finish:
            self.count += tokens.count(packed)
            self._reply.tokens(packed, tokens.count(packed), finish)
        return 0 if finish else None

    def end(self) -> None:
        """The handler is done: without a finish reason it has generated all that it may, or stopped."""
        full = self._room is not None and self.count >= self._room
        self._reply.tokens(b"", 0, "length" if full else "stop")

    def _usage(self, usage: Mapping[str, Any]) -> None:
        """Say what is known of the prompt, as long as nothing of the answer has been sent."""
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        if type(cached) is int and cached >= 0 and not self.count:
            self._said = True
            self._reply.cached_tokens(cached)

    def _pack(self, ids: Any) -> bytes:
        try:
            values = list(ids)
            packed = tokens.pack(values)
        except OverflowError:
            wrong = next(one for one in values if not 0 <= int(one) < 2**31)
            raise EngineFailed(f"{self._name} yielded the token id {wrong}, which is no 32-bit number") from None
        except TypeError:
            why = f"{self._name} yielded the token_ids {quoted(ids)}: a list of whole numbers is needed"
            raise EngineFailed(why) from None
        if min(tokens.unpack(packed), default=0) < 0:
            raise EngineFailed(f"{self._name} yielded the token id {min(values)}: none is negative")
        return packed

    def _finish(self, reason: Any) -> str | None:
        if reason is None:
            return None
        if isinstance(reason, Mapping) and "error" in reason:
            raise EngineFailed(f"{self._name}: {reason['error']}")
        text = str(getattr(reason, "value", reason))
        if text.startswith("error"):
            raise EngineFailed(f"{self._name}: {text.removeprefix('error').lstrip(': ') or 'error'}")
        if text == "cancelled":
            raise EngineFailed(f"{self._name} cancelled the request")
        if text not in FINISH:
            known = ", ".join([*FINISH, "cancelled", "error: ..."])
            raise EngineFailed(f"{self._name} yielded the finish_reason {text!r}; known are: {known}")
        return FINISH[text]


class ChunkWriter:
    """Takes chat.completion.chunk dicts (or text_completion ones), or a whole answer in one dict."""

    def __init__(self, reply: Reply, name: str) -> None:
        self._reply, self._name = reply, name
        self._finish = ""
        self._usage: Mapping[str, Any] | None = None
        self.count = 0  # chunks with content: what stands for tokens as long as the engine counts none

    def take(self, item: Any) -> float | None:
        """Send one item; see `handler.Take`. Raises EngineFailed that names what is wrong."""
        item = sendable(item, self._name)
        if not isinstance(item, dict):
            raise EngineFailed(f"{self._name} yielded {quoted(item)}: an OpenAI chunk as a dict is needed")
        if isinstance(item.get("error"), Mapping):
            raise EngineFailed(f"{self._name}: {item['error'].get('message', item['error'])}")
        choices, usage = item.get("choices"), item.get("usage")
        if not isinstance(choices, list) or not all(isinstance(one, Mapping) for one in choices):
            raise EngineFailed(f"{self._name} yielded a dict without a list of choices: an OpenAI chunk is needed")
        if isinstance(usage, Mapping):
            self._usage = usage
        if choices and not self._finish:
            parts = [_delta(one) for one in choices]
            self.count += any((part.get("delta") or {}).get("content") or part.get("text") for part in parts)
            self._reply.items(({**item, "choices": parts},))
            self._finish = next((str(one["finish_reason"]) for one in choices if one.get("finish_reason")), "")
        if not self._finish:
            return None
        return 0 if self._usage is not None else AFTER_FINISH

    def end(self) -> None:
        """The handler is done; counts come last."""
        given = {key: count for key, count in (self._usage or {}).items() if isinstance(count, int)}
        details = {key: said for key, said in (self._usage or {}).items() if isinstance(said, Mapping)}
        if details:
            self._reply.items(({"choices": [], "usage": details},))
        count = given.get("completion_tokens", self.count)
        self._reply.text("", count, self._finish or "stop", given.get("prompt_tokens"))


class VectorWriter:
    """Takes vectors: dicts with `embeddings` (lists of numbers), or OpenAI's answers, all of which are sent at the end.

    `told`: `prompt_tokens` are those of the handler, which is the only source of that number.
    """

    def __init__(self, reply: Reply, name: str, *, told: bool = False) -> None:
        self._reply, self._name, self._told = reply, name, told
        self._vectors: list[bytes] = []
        self._prompt_tokens: int | None = None
        self.count = 0  # no tokens are made

    def take(self, item: Any) -> float | None:
        """Keep the vectors of one item. Raises EngineFailed that names what is wrong."""
        item = sendable(item, self._name)
        rows = item.get("embeddings") if isinstance(item, dict) else None
        if rows is None and isinstance(item, dict) and isinstance(item.get("data"), list):
            rows = [one.get("embedding") if isinstance(one, Mapping) else None for one in item["data"]]
        if not isinstance(rows, list):
            why = f"{self._name} yielded {quoted(item)}: a dict with embeddings, a list of lists of numbers, is needed"
            raise EngineFailed(why)
        for row in rows:
            try:
                self._vectors.append(vectors.pack(vectors.unit(row)))
            except (TypeError, ValueError, OverflowError) as error:
                raise EngineFailed(f"{self._name} yielded the vector {quoted(row)}: {error}") from None
        usage = item.get("usage") if isinstance(item.get("usage"), Mapping) else item
        if isinstance(usage.get("prompt_tokens"), int):
            self._prompt_tokens = (self._prompt_tokens or 0) + usage["prompt_tokens"]
        return None

    def end(self) -> None:
        """The handler is done."""
        try:
            vectors.check_size(self._vectors)
        except ValueError as error:
            raise EngineFailed(f"{self._name}: {error}") from None
        self._reply.items(tuple(self._vectors))
        self._reply.text("", 0, "stop", self._prompt_tokens if self._told else None)


def _delta(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice of a whole answer as one of a chunk; of a chunk as it is."""
    message = choice.get("message")
    if not isinstance(message, Mapping) or choice.get("delta") is not None:
        return dict(choice)
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": {name: value for name, value in message.items() if value is not None}}


def sendable(item: Any, name: str) -> Any:
    """An item as plain data that fits into a frame. Raises EngineFailed: nothing else in the frame may suffer."""
    try:
        made = plain(item)
        _encode(made)
    except (UserError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EngineFailed(f"{name} yielded {quoted(item)}, which cannot be sent: {error}") from None
    return made


def quoted(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
