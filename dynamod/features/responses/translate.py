"""A request of the Responses API as the chat request that it means.

Neighbouring items of the assistant (reasoning, a message, calls) become one message, as a chat has them.
"""

from collections.abc import Sequence
from typing import Any

from dynamod.ingress.api.translated import content_of, joined
from dynamod.ingress.api.unserved import Unserved, field_of
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import ChatRequest, EngineFields, Function, Message, ResponseFormat, ToolCall

from .items import REFERENCE, unsealed
from .messages import ROLES, TEXT_PARTS, InputItem, InputPart, ResponsesRequest, TextFormat
from .tools import arguments_of, check_tools, chosen, flat_name, served

LOGPROBS = "message.output_text.logprobs"
_SAME = (*EngineFields.__struct_fields__, "temperature", "top_p", "stream", "parallel_tool_calls")
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    REFERENCE: ("id",),
}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def unserved(request: ResponsesRequest, card: ModelCard | None = None) -> Unserved:
    """Fields that would change the answer and are not served, which an operator may have left out."""
    if request.background:
        yield "background", "`background` is not served"
    if card is not None:
        yield from unscored(request, card)
    if request.text is not None:
        if request.text.verbosity not in (None, "medium"):
            yield "text.verbosity", "`text.verbosity` is not served"
        if card is not None and not card.capabilities.grammars and _format(request.text.format) is not None:
            yield "text.format", f"`text.format`: the engine of model {card.name!r} has no grammars."


def scores(request: ResponsesRequest) -> bool:
    """Whether the text of the answer has log probabilities."""
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def unscored(request: ResponsesRequest, card: ModelCard) -> Unserved:
    """Log probabilities that the model does not offer."""
    if scores(request) and not card.capabilities.logprobs:
        name = "top_logprobs" if request.top_logprobs else f"include[{(request.include or []).index(LOGPROBS)}]"
        yield name, f"`{field_of(name)}`: the model {card.name!r} offers no logprobs."


def check(request: ResponsesRequest) -> None:
    """What is not served is refused. Raises BadRequest."""
    for place, item in enumerate(request.input if not isinstance(request.input, str) else ()):
        _check_item(item, f"input[{place}]")
    check_tools(request.tools)
    chosen(request.tool_choice)
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise unsupported(name, f"`{name}` is not served")
    for path, why in unserved(request):
        raise unsupported(field_of(path), why)


def _check_item(item: InputItem, where: str) -> None:
    needed = _NEEDED.get(item.type)
    if needed is None:
        raise unsupported(f"{where}.type", f"`{where}.type` is {item.type[:40]!r}, which is not served")
    for name in needed:
        if getattr(item, name) is None:
            raise BadRequest(f"`{where}.{name}` is required", param=f"{where}.{name}")
    if item.type == "message" and item.role not in ROLES:
        raise BadRequest(f"`{where}.role` must be one of {', '.join(ROLES)}", param=f"{where}.role")
    for name in ("content", "output", "summary"):
        value = getattr(item, name)
        for number, part in enumerate(value if isinstance(value, list) else ()):
            _check_part(part, f"{where}.{name}[{number}]")


def _check_part(part: InputPart, where: str) -> None:
    name = "refusal" if part.type == "refusal" else "text"
    if part.type not in (*TEXT_PARTS, "refusal"):
        text = f"`{where}.type` is {part.type[:40]!r}; images and files are not supported, only text"
        raise BadRequest(text, param=f"{where}.type", code="unsupported_content")
    if getattr(part, name) is None:
        raise BadRequest(f"`{where}.{name}` is required", param=f"{where}.{name}")


def to_chat(request: ResponsesRequest, history: Sequence[Message]) -> ChatRequest:
    """The chat request. `history`: the conversation that it continues."""
    messages = [*history, *input_messages(request)]
    if request.instructions is not None:
        messages.insert(0, Message("system", request.instructions))
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME}
    tools = [one.function() for one in served(request.tools)]
    return ChatRequest(
        **fields,
        messages=joined(messages),
        max_completion_tokens=request.max_output_tokens,
        logprobs=True if scores(request) else None,
        top_logprobs=request.top_logprobs if scores(request) else None,
        tools=tools or None,
        tool_choice=chosen(request.tool_choice),
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        response_format=_format(request.text.format) if request.text is not None else None,
    )


def _format(form: TextFormat | None) -> ResponseFormat | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return ResponseFormat("json_object")
    found = {"name": form.name or "answer", "schema": form.schema, "strict": form.strict}
    return ResponseFormat("json_schema", {name: value for name, value in found.items() if value is not None})


def input_messages(request: ResponsesRequest) -> list[Message]:
    """The input as messages of a chat."""
    if isinstance(request.input, str):
        return [Message("user", request.input)]
    found: list[Message] = []
    names: dict[str, str] = {}  # of functions, by the ids of their calls
    turn = AssistantItems()
    for item in request.input:
        said = item.type == "reasoning" and turn.says_more
        if said or item.type in _OUTPUTS or (item.type == "message" and item.role != "assistant"):
            found += turn.take()
        match item.type:
            case "reasoning":
                turn.thoughts += _thoughts(item)
            case "function_call" | "custom_tool_call":
                name = flat_name(item.name or "", item.namespace)
                custom = item.type == "custom_tool_call"
                arguments = arguments_of(item.input or "") if custom else item.arguments
                turn.calls.append(ToolCall(Function(name, arguments), item.call_id))
                names[item.call_id or ""] = name
            case "function_call_output" | "custom_tool_call_output":
                content, called = content_of(_texts(item.output)), names.get(item.call_id or "")
                found.append(Message("tool", content, tool_call_id=item.call_id, name=called))
            case _ if item.role == "assistant":
                turn.texts += _texts(item.content)
            case _:
                found.append(Message(item.role or "user", content_of(_texts(item.content))))
    return [*found, *turn.take()]


def _thoughts(item: InputItem) -> list[str]:
    """Reasoning as the model wrote it, or as clients carry it, or what is left of it."""
    if any(texts := _texts(item.content)):
        return texts
    hidden = unsealed(item.encrypted_content)
    return [hidden] if hidden else _texts(item.summary)


class AssistantItems:
    """Items of an assistant that become one message."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []

    @property
    def says_more(self) -> bool:
        """Whether there is more than reasoning."""
        return bool(self.texts or self.calls)

    def take(self) -> list[Message]:
        """The message, or none; it begins anew."""
        thoughts, texts, calls = self.thoughts, self.texts, self.calls
        self.thoughts, self.texts, self.calls = [], [], []
        if not (thoughts or texts or calls):
            return []
        content = content_of(texts) if texts or not calls else None
        reasoning = "\n".join(thoughts) if thoughts else None
        return [Message("assistant", content, tool_calls=calls or None, reasoning_content=reasoning)]


def _texts(content: str | Sequence[InputPart] | None) -> list[str]:
    return [content] if isinstance(content, str) else [part.words for part in content or ()]
