"""Requests of Ollama's API as the chats and completions that they mean."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dynamod.ingress.api.translated import joined
from dynamod.ingress.api.unserved import Unserved
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import (
    ChatRequest,
    CompletionRequest,
    EngineFields,
    Function,
    Message,
    ResponseFormat,
    ToolCall,
)

from .messages import Asking, OllamaChatRequest, OllamaGenerateRequest, OllamaMessage
from .options import fields_of

_SAME = EngineFields.__struct_fields__


def unserved(request: Asking, card: ModelCard | None = None) -> Unserved:
    """Fields that would change the answer and are not served, which an operator may have left out."""
    if isinstance(request, OllamaGenerateRequest):
        if request.template:
            yield "template", "`template` is not served: the model's own is used; with `raw` the prompt needs none"
        if request.context:
            yield "context", "`context` is not served: send the `messages` of the conversation to /api/chat"
        for name in ("width", "height", "steps"):
            if getattr(request, name) is not None:
                yield name, f"`{name}` is not served: models here make text"
    if card is not None and request.format and not card.capabilities.grammars:
        yield "format", f"`format`: the engine of model {card.name!r} has no grammars."


def check(request: Asking) -> None:
    """What is not served is refused. Raises BadRequest."""
    if isinstance(request, OllamaGenerateRequest):
        if request.images:
            raise _image("images")
    elif isinstance(request, OllamaChatRequest):
        for place, message in enumerate(request.messages or ()):
            if message.images:
                raise _image(f"messages[{place}].images")
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    for path, why in unserved(request):
        raise unsupported(path, why)


def _image(where: str) -> BadRequest:
    return BadRequest(f"`{where}`: images are not supported, only text", param=where, code="unsupported_content")


def to_chat(request: OllamaChatRequest | OllamaGenerateRequest) -> ChatRequest:
    """The chat that a request means: of /api/generate, the prompt as the user's message."""
    if isinstance(request, OllamaGenerateRequest):
        system = [OllamaMessage("system", request.system)] if request.system else []
        said, tools = [*system, OllamaMessage("user", request.prompt or "")], None
    else:
        said, tools = list(request.messages or ()), request.tools or None
    messages = joined(list(_messages(said)))
    last = messages[-1]
    begun: dict[str, Any] = {}
    if last.role == "assistant" and not last.tool_calls and isinstance(last.content, str) and last.content.strip():
        begun = {"continue_final_message": True, "add_generation_prompt": False}
    return ChatRequest(
        **_common(request),
        **_thinking(request),
        **begun,
        messages=messages,
        tools=tools,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
    )


def to_completion(request: OllamaGenerateRequest) -> CompletionRequest:
    """The completion that a request with `raw` or `suffix` means."""
    prompt = request.prompt or ""
    if request.system and not request.raw:
        prompt = f"{request.system}\n{prompt}"
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return CompletionRequest(**_common(request), prompt=prompt, suffix=request.suffix or None, logprobs=logprobs)


def _common(request: Asking) -> dict[str, Any]:
    found = {name: getattr(request, name) for name in _SAME} | fields_of(request.options)
    form = request.format
    if form:
        kind = ("json_object", None) if isinstance(form, str) else ("json_schema", {"name": "answer", "schema": form})
        found["response_format"] = ResponseFormat(*kind)
    return found | {"stream": request.stream is not False}


def _thinking(request: Asking) -> dict[str, Any]:
    """Whether the model reasons first. The names are the ones in chat templates."""
    think = request.think
    if think is None:
        return {}
    found: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": bool(think), "thinking": bool(think)}}
    return found if isinstance(think, bool) else found | {"reasoning_effort": think}


def _messages(said: Sequence[OllamaMessage]) -> Iterator[Message]:
    """The messages. A result without the id of its call belongs to the first open call of its tool, or of any."""
    open_calls: list[ToolCall] = []
    number = 0
    for message in said:
        content = message.content or ""
        if message.role == "tool":
            number += 1
            found = _call_of(message, open_calls)
            if found is not None:
                open_calls.remove(found)
            call_id = message.tool_call_id or (found and found.id) or f"call_{number}"
            name = message.tool_name or message.name or (found.function.name if found is not None else None)
            yield Message("tool", content, tool_call_id=call_id, name=name)
        elif message.role == "assistant":
            calls = [_call(one, f"call_{number + place}") for place, one in enumerate(message.tool_calls or (), 1)]
            open_calls = [*calls]
            text = content if content or not calls else None
            yield Message("assistant", text, tool_calls=calls or None, reasoning_content=message.thinking or None)
        else:
            yield Message(message.role, content)


def _call(call: Any, call_id: str) -> ToolCall:
    arguments = msgspec.json.encode(call.function.arguments).decode()
    return ToolCall(Function(call.function.name, arguments), call.id or call_id)


def _call_of(message: OllamaMessage, calls: Sequence[ToolCall]) -> ToolCall | None:
    if message.tool_call_id:
        return next((call for call in calls if call.id == message.tool_call_id), None)
    name = message.tool_name or message.name
    named = (call for call in calls if name is None or call.function.name == name)
    return next(named, calls[0] if calls else None)
