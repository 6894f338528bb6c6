"""The answer in one piece: the same calls, folded."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dynamod.http.errors import json_response, printable
from dynamod.http.metrics import ModelMetrics
from dynamod.ingress.base import Job, Logprob
from dynamod.message.errors import EngineFailed

from .chunks import ID_PREFIX
from .logprobs import chat_form, completion_form
from .response import Choice, ResponseWriter


class UnaryWriter(ResponseWriter):
    """Collects an answer. Cancelling `serve` (the client left) leaves nothing behind."""

    def __init__(self, job: Job, meter: ModelMetrics, begun: float, model: str, created: int) -> None:
        super().__init__(job, meter, begun)
        self._model = model
        self._created = created
        self._extra: dict[int, dict[str, Any]] = {}  # by choice: what chunks of text engines said beside content
        self._logprobs: dict[int, Any] = {}
        self._routed: dict[str, Any] = {}  # the answer to a question for the instance

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """See ResponseSink. Annotations are for streams, but for the answer to `query_instance_id`."""
        super().started(choices, prompt_tokens, annotations)
        if "worker_instance_id" in annotations:
            self._routed = {"nvext": dict(annotations)}

    def text(self, index: int, text: str, tokens: int) -> None:
        """See ResponseSink."""
        if self.open:
            choice = self.choices[index]
            self.tick(choice, tokens)
            choice.held.append(text)

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        """See ResponseSink."""
        if self.open:
            self.choices[index].entries += entries

    def chunk(self, index: int, chunk: Mapping[str, Any]) -> None:
        """See ResponseSink."""
        if not self.open:
            return
        choice = self.choices[index]
        self.tick(choice, 0)
        try:
            for part in chunk.get("choices") or ():
                self._part(choice, part)
        except (TypeError, ValueError, AttributeError):
            self.fail(EngineFailed("the engine sent a chunk that is no OpenAI chunk"))

    async def serve(self, headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and answer. Raises the RequestError that ended it."""
        while self.open:
            await self.wait()
        if self.error is not None:
            raise self.error
        body = self._chat() if self.job.kind == "chat" else self._completion()
        try:
            return json_response(body, headers=headers)
        except (TypeError, ValueError, RecursionError) as error:
            raise EngineFailed("the engine's answer is no JSON") from error

    def _chat(self) -> dict[str, Any]:
        return {
            "id": ID_PREFIX["chat"] + self.job.id,
            "choices": [self._chat_choice(choice) for choice in self.choices],
            "created": self._created,
            "model": self._model,
            "service_tier": None,
            "system_fingerprint": None,
            "object": "chat.completion",
            "usage": self.usage(),
            **self._routed,
        }

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        extra = self._extra.get(choice.index, {})
        text = printable("".join(choice.held))
        message = {
            "content": None if not text and extra.get("tool_calls") else text,
            "refusal": None,
            "tool_calls": None,
            "role": "assistant",
            "function_call": None,
            "audio": None,
            **extra,
        }
        logprobs = chat_form(choice.entries) if choice.entries else self._logprobs.get(choice.index)
        return {"index": choice.index, "message": message, "finish_reason": choice.reason, "logprobs": logprobs}

    def _completion(self) -> dict[str, Any]:
        choices = []
        for choice in self.choices:
            entries = choice.entries
            logprobs = completion_form(entries, 0) if entries else self._logprobs.get(choice.index)
            text = printable("".join(choice.held))
            row = {"index": choice.index, "text": text, "finish_reason": choice.reason, "logprobs": logprobs}
            choices.append(row)
        return {
            "id": ID_PREFIX["completion"] + self.job.id,
            "choices": choices,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": None,
            "object": "text_completion",
            "usage": self.usage(),
            **self._routed,
        }

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        delta = part.get("delta") or {}
        content = part.get("text", delta.get("content"))
        if content:
            choice.held.append(content + "")  # TypeError for what is no text
        extra = self._extra.setdefault(choice.index, {})
        for name, value in delta.items():
            if value is None or name in ("content", "role"):
                continue
            if name == "tool_calls":
                _merge_tool_calls(extra.setdefault("tool_calls", []), value)
            elif isinstance(value, str):
                extra[name] = extra.get(name, "") + value
            else:
                extra[name] = value
        self._merge_logprobs(choice.index, part.get("logprobs"))

    def _merge_logprobs(self, index: int, new: Mapping[str, Any] | None) -> None:
        if not new:
            return
        known = self._logprobs.setdefault(index, {})
        for name, value in new.items():
            known[name] = known[name] + value if isinstance(known.get(name), list) and value else value


def _merge_tool_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    """Put pieces of tool calls together: by `index`; names and ids come once, arguments in pieces."""
    for delta in deltas:
        place = delta.get("index")
        place = len(calls) if place is None else place
        while len(calls) <= place:
            if len(calls) > 1024:
                raise ValueError("too many tool calls")
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[place], delta.get("function") or {}
        call["id"] = delta.get("id") or call["id"]
        call["type"] = delta.get("type") or call["type"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""
