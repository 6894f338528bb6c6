"""POST /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from dynamod.ingress.base import Logprob
from dynamod.message.openai import ChatRequest
from dynamod.preprocess.model import Model, Prepared

from .form import Finished, Head, Usage, finite
from .generate import Generation
from .validate import check_chat


class AssistantMessage(TypedDict):
    """The message of an answer; text engines may add members of their own."""

    content: str | None
    refusal: str | None
    tool_calls: list[Any] | None
    role: Literal["assistant"]
    function_call: dict[str, Any] | None
    audio: dict[str, Any] | None


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AssistantMessage
    finish_reason: str | None
    logprobs: dict[str, Any] | None


class ChatResponse(msgspec.Struct, kw_only=True):
    """The whole answer. `nvext`: where the request would go, for `query_instance_id`."""

    id: str
    choices: list[ChatChoice]
    created: int
    model: str
    service_tier: str | None = None
    system_fingerprint: str | None = None
    object: Literal["chat.completion"] = "chat.completion"
    usage: Usage
    nvext: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletions(Generation[ChatRequest]):
    """Answers a conversation."""

    path = "/v1/chat/completions"
    summary = "Answer a conversation"
    request = ChatRequest
    response = ChatResponse
    label = "chat_completions"
    model_type = "chat"
    kind = "chat"
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    text_suffix = b"}"

    def check(self, request: ChatRequest) -> None:
        """The messages, and what this API does not serve."""
        check_chat(request)

    def prompts(self, model: Model, request: ChatRequest) -> Sequence[Prepared]:
        """The messages in the model's template."""
        return (model.prepare_chat(request),)

    def text_prefix(self, index: int, first: bool) -> bytes:
        """The first chunk of a choice carries the role too, so that chunks equal engine steps."""
        role = b'"role":"assistant",' if first else b""
        return b'{"index":%d,"delta":{%b"content":' % (index, role)

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The same as a dict."""
        return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}

    def ending(self, first: bool) -> dict[str, Any]:
        """A choice without text still says its role."""
        return self.delta("", first) if first else {"delta": {}}

    def part(self, part: Mapping[str, Any], first: bool) -> dict[str, Any] | None:
        """The delta as it came; text of a completion becomes its content."""
        delta = dict(part.get("delta") or {})
        content = part.get("text")
        if isinstance(content, str):
            delta.setdefault("content", content)
        if not any(value is not None for name, value in delta.items() if name != "role"):
            return None
        return {"delta": {"role": "assistant", **delta} if first else delta}

    def logprobs(self, entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
        """`{"content": [{token, bytes, logprob, top_logprobs}], "refusal": null}`."""
        content = []
        for entry in entries:
            top = [_token(token, raw, value) for token, raw, value in entry.top]
            content.append(_token(entry.token, entry.token_bytes, entry.value) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def whole(self, head: Head, choices: Sequence[Finished], usage: Usage, nvext: Any) -> ChatResponse:
        """Choices with messages."""
        return ChatResponse(
            id=self.id_prefix + head.id,
            choices=[ChatChoice(one.index, _message(one), one.reason, one.logprobs) for one in choices],
            created=head.created,
            model=head.model,
            usage=usage,
            nvext=nvext,
        )


def _message(choice: Finished) -> AssistantMessage:
    message: AssistantMessage = {
        "content": None if not choice.text and choice.extra.get("tool_calls") else choice.text,
        "refusal": None,
        "tool_calls": None,
        "role": "assistant",
        "function_call": None,
        "audio": None,
    }
    return {**message, **choice.extra}  # type: ignore[typeddict-item]  # what a text engine adds is its own


def _token(token: str, raw: bytes, value: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(raw), "logprob": finite(value)}
