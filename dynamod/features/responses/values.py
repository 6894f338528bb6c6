"""What the Responses API answers with."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dynamod.ingress.api.blocks import Kind
from dynamod.message.openai import Function, Message, ToolCall

from .messages import FunctionTool, ResponsesRequest
from .tools import ServedTool, arguments_of, flat_name

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str = ""
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text", tag_field="type"):
    """Reasoning as the model wrote it."""

    text: str = ""


class SummaryText(msgspec.Struct, tag="summary_text", tag_field="type"):
    """Reasoning in the place where clients look for a summary: the whole, for no model here writes summaries."""

    text: str = ""


class OutputMessage(msgspec.Struct, tag="message", tag_field="type"):
    """Text for the user."""

    id: str
    content: list[OutputText]
    status: Status = "in_progress"
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning", tag_field="type"):
    """What the model has thought before: in `summary` where the client has asked for that, else in `content`.

    `encrypted_content`: the same, where the client has asked for that.
    """

    id: str
    content: list[ReasoningText]
    summary: list[SummaryText] = []
    status: Status = "in_progress"
    encrypted_content: str | None = None

    @property
    def words(self) -> str:
        """The reasoning."""
        return "".join([part.text for part in self.summary] + [part.text for part in self.content])


class FunctionCallItem(msgspec.Struct, tag="function_call", tag_field="type"):
    """A function that the client shall call. `namespace`: of the function, if it is in one."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCallItem(msgspec.Struct, tag="custom_tool_call", tag_field="type"):
    """A custom tool that the client shall call, with a text."""

    id: str
    call_id: str
    name: str
    input: str = ""
    status: Status = "in_progress"
    namespace: str | msgspec.UnsetType = msgspec.UNSET


Item = OutputMessage | ReasoningItem | FunctionCallItem | CustomToolCallItem


class InputDetails(msgspec.Struct, frozen=True):
    """Of the tokens of the prompt. 0 also where the engine does not know: clients need a number here."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the tokens of the answer."""

    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and of the answer."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails
    input_tokens_details: InputDetails


class ResponseError(msgspec.Struct, frozen=True):
    """Why it has failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why it is not complete: max_output_tokens or content_filter."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The whole answer, with what was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item] = []
    usage: ResponsesUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Any = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float | None = None
    truncation: Any = "disabled"
    background: bool = False
    user: str | None = None


class DeletedResponse(msgspec.Struct):
    """The response is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


def begun(request: ResponsesRequest, model: str) -> ResponseObject:
    """The answer to a request before its first item. Its id cannot be guessed: the id is enough to read the answer."""
    plain = msgspec.to_builtins
    text, reasoning = request.text, request.reasoning
    form = text.format if text is not None else None
    return ResponseObject(
        id=f"resp_{secrets.token_hex(24)}",
        created_at=int(time.time()),
        model=model,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata if request.metadata is not None else {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning=plain(reasoning) if reasoning is not None else {"effort": None, "summary": None},
        store=request.store is not False,
        temperature=request.temperature,
        text={"format": plain(form) if form is not None else {"type": "text"}},
        tool_choice="auto" if request.tool_choice is None else request.tool_choice,
        tools=[_echoed(tool) for tool in request.tools or ()],
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


_OF_FUNCTIONS = ("type", "name", "parameters", "strict", "description")


def _echoed(tool: FunctionTool) -> dict[str, Any]:
    """A tool as a response repeats it: all fields of a function, the set fields of other tools."""
    found: dict[str, Any] = msgspec.to_builtins(tool)
    if tool.type == "function":
        return {name: found[name] for name in _OF_FUNCTIONS}
    if tool.tools is not None:
        found["tools"] = [_echoed(inner) for inner in tool.tools]
    return {name: value for name, value in found.items() if value is not None and value != ""}


def new_item(kind: Kind, name: str, call_id: str, tools: Mapping[str, ServedTool]) -> Item:
    """An item that begins. `tools`: of the client, by the names that the model knows."""
    code = secrets.token_hex(16)
    if kind == "thinking":
        return ReasoningItem(f"rs_{code}", [])
    if kind != "tool_use":
        return OutputMessage(f"msg_{code}", [])
    tool, call_id = tools.get(name), call_id or f"call_{code}"
    if tool is None:
        return FunctionCallItem(f"fc_{code}", call_id, name)
    namespace = tool.namespace or msgspec.UNSET
    if tool.custom:
        return CustomToolCallItem(f"ctc_{code}", call_id, tool.name, namespace=namespace)
    return FunctionCallItem(f"fc_{code}", call_id, tool.name, namespace=namespace)


def _call(item: FunctionCallItem | CustomToolCallItem) -> ToolCall:
    """A call as the model has made it."""
    name = flat_name(item.name, item.namespace or None)
    arguments = item.arguments if isinstance(item, FunctionCallItem) else arguments_of(item.input)
    return ToolCall(Function(name, arguments), item.call_id)


def message_of(response: ResponseObject) -> Message:
    """What it has said, as the message of a chat."""
    texts = [part.text for item in response.output if isinstance(item, OutputMessage) for part in item.content]
    reasoning = [item for item in response.output if isinstance(item, ReasoningItem)]
    thoughts = [item.words for item in reasoning]
    calls = [_call(item) for item in response.output if isinstance(item, FunctionCallItem | CustomToolCallItem)]
    return Message(
        "assistant",
        "".join(texts) if texts or not calls else None,
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
    )
