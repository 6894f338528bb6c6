"""The answer in one piece: the same calls, folded."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import Logprob
from dynamod.message.hints import printable
from dynamod.message.openai import Common

from .details import PromptLogprob, prompt_logprobs
from .response import Choice, ResponseWriter, named

if TYPE_CHECKING:
    from .generate import Generation


class UnaryWriter(ResponseWriter):
    """Collects an answer."""

    def __init__(
        self,
        form: "Generation[Any]",
        request: Common,
        request_id: str,
        begun: float,
        meter: ModelMetrics,
        settings: FrontendSettings,
    ) -> None:
        super().__init__(meter, begun, request.n or 1, form.echo(request))
        self._form, self._reasoning_field = form, settings.reasoning_field_name
        self._head = {"id": form.id_prefix + request_id, "created": int(time.time()), "model": request.model}
        self._extra: dict[int, dict[str, Any]] = {}  # by choice: what chunks of text engines said besides content
        self._logprobs: dict[int, Any] = {}
        self._request, self._scores = request, dict[int, list[dict[int, PromptLogprob] | None]]()
        self._nvext: Any = msgspec.UNSET  # the answer to a question for the instance
        self._extra_fields, self._metrics = request.extra_fields, settings.per_request_metrics

    def started(self, choices: int, prompt_tokens: int, annotations: Mapping[str, Any]) -> None:
        """Annotations are for streams, except for the answer to `query_instance_id`."""
        super().started(choices, prompt_tokens, annotations)
        if "worker_instance_id" in annotations:
            self._nvext = annotations

    def text(self, index: int, text: str, tokens: int) -> None:
        """Keep it."""
        if self.open:
            choice = self.choices[index]
            self.tick(choice, tokens)
            choice.held.append(text)

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the end and send the whole answer."""
        return await self.in_one_piece(self._answer, headers)

    def _answer(self) -> msgspec.Struct:
        choices, usage = [self._whole(choice) for choice in self.choices], self.usage(self.completion_tokens)
        nvext = self._nvext
        if self._extra_fields:
            nvext = {**(nvext or {}), **self.details.extra(self._extra_fields, self.first)}
        metrics = self.request_metrics() if self._metrics else msgspec.UNSET
        assert self._form.response is not None
        found = self._form.response(**self._head, choices=choices, usage=usage, nvext=nvext, metrics=metrics)
        for choice in self.choices if self.answer_ids or self._scores else ():
            index = choice.index
            holder: Any = found if not self._form.prompt_ids_in_choice else choices[index]
            if self.answer_ids:
                choices[index].token_ids = self.answer_ids[index]  # type: ignore[attr-defined]
                holder.prompt_token_ids = self.prompt_ids[index // self._samples]
            if index in self._scores:
                holder.prompt_logprobs = self._scores[index]
        return found

    def _scored(self, choice: Choice, entries: tuple[Logprob, ...], ids: Sequence[Sequence[int]]) -> None:
        request = self._request
        if request.prompt_logprobs is not None:
            self._scores[choice.index] = prompt_logprobs(entries, ids, request.prompt_logprobs)
        if self._form.echo(request) and (most := request.alternatives) is not None:
            super()._scored(choice, tuple([replace(entry, top=entry.top[:most]) for entry in entries]), ids)

    def _whole(self, choice: Choice) -> msgspec.Struct:
        index, entries = choice.index, choice.entries
        logprobs = self._form.logprobs(entries, 0) if entries else self._logprobs.get(index)
        text, reason = printable("".join(choice.held)), choice.reason or "stop"
        return self._form.choice(index, text, reason, logprobs, self._extra.get(index, {}))

    def _part(self, choice: Choice, part: Mapping[str, Any]) -> None:
        delta = named(part.get("delta") or {}, self._reasoning_field)
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
