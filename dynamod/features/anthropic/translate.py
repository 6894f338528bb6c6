"""A request of the Messages API as the chat request that it means.

Order of a turn: results of tools become tool messages, which come first; then the user's text. The blocks of an
assistant's turn become one message: reasoning, text, calls.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dynamod.ingress.api.translated import content_of, joined
from dynamod.ingress.api.unserved import Unserved
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import ChatRequest, EngineFields, Function, Message, ResponseFormat, ToolCall

from .errors import NO_THREADS
from .messages import (
    AssistantTurn,
    Conversation,
    DocumentBlock,
    ImageBlock,
    MessagesRequest,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)

_PREAMBLE = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n*", re.IGNORECASE)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SAME = tuple(name for name in EngineFields.__struct_fields__ if name != "metadata")


def unserved(request: Conversation, card: ModelCard | None = None) -> Unserved:
    """Fields that would change the answer and are not served, which an operator may have left out."""
    if request.mcp_servers:
        yield "mcp_servers", "`mcp_servers` are not served: give their tools in `tools`"
    if request.container is not None:
        yield "container", "`container` is not served: tools run where the client runs"
    if request.compaction is not None and isinstance(request, MessagesRequest):
        yield "compaction", "`compaction` is not served: ask for a summary in `messages`"
    if card is not None and not card.capabilities.grammars:
        config, why = request.output_config, f"the engine of model {card.name!r} has no grammars."
        if config is not None and config.format is not None:
            yield "output_config.format", f"`output_config.format`: {why}"
        if request.output_format is not None:
            yield "output_format", f"`output_format`: {why}"


def check(request: Conversation) -> None:
    """What is not served is refused. Raises BadRequest."""
    for place, turn in enumerate(request.messages):
        for number, block in enumerate(turn.content if not isinstance(turn.content, str) else ()):
            where = f"messages[{place}].content[{number}]"
            _check_block(block, where)
            if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                for inner, part in enumerate(block.content):
                    _check_block(part, f"{where}.content[{inner}]")
    choice = request.tool_choice
    if choice is not None and choice.type == "tool" and choice.name is None:
        raise BadRequest("`tool_choice.name` is required", param="tool_choice.name")
    if choice is not None and choice.type in ("any", "tool") and not request.tools:
        raise BadRequest(f"`tool_choice` {choice.type!r} needs `tools`", param="tool_choice")
    if request.thread is not None:
        text = "`thread` is not served, conversations are not held here: send all `messages` without it"
        raise BadRequest(text, param="thread", code=NO_THREADS)
    for path, why in unserved(request):
        raise unsupported(path, why)


def _check_block(block: Any, where: str) -> None:
    if isinstance(block, ImageBlock | DocumentBlock):
        what = "an image; images" if isinstance(block, ImageBlock) else "a document; documents"
        text = f"`{where}` is {what} are not supported, only text"
        raise BadRequest(text, param=f"{where}.type", code="unsupported_content")


def to_chat(request: Conversation, strip_preamble: bool) -> ChatRequest:
    """The chat request. `strip_preamble`: without the header line that agents put first into their system prompt."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME}
    if isinstance(request.metadata, dict) and isinstance(user := request.metadata.get("user_id"), str):
        fields["user"] = user
    if isinstance(request, MessagesRequest):
        for name in ("max_tokens", "stream", "temperature", "top_k", "top_p"):
            fields[name] = getattr(request, name)
        fields["stop"] = request.stop_sequences or None
    messages = _messages(request, strip_preamble)
    if isinstance(last := request.messages[-1], AssistantTurn) and not messages[-1].tool_calls and _says(last):
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return ChatRequest(**fields, messages=messages, **_tools(request), **_answer(request))


def _tools(request: Conversation) -> dict[str, Any]:
    tools = []
    for tool in request.tools or ():
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        if tool.strict is not None:
            function["strict"] = tool.strict
        tools.append({"type": "function", "function": function})
    choice, found = request.tool_choice, {"tools": tools or None}
    if choice is None:
        return found
    named = {"type": "function", "function": {"name": choice.name}}
    parallel = False if choice.disable_parallel_tool_use else None
    return found | {"tool_choice": _CHOICES.get(choice.type, named), "parallel_tool_calls": parallel}


def _answer(request: Conversation) -> dict[str, Any]:
    """How the model reasons, and the form of its answer. The names are the ones in chat templates."""
    found: dict[str, Any] = {}
    if request.thinking is not None:
        on = request.thinking.type != "disabled"
        found["chat_template_kwargs"] = {"enable_thinking": on, "thinking": on}
        if on:  # reasoning of earlier turns stays, so that the prompt continues where the last one has ended
            found["chat_template_kwargs"]["truncate_history_thinking"] = False
    config, form = request.output_config, request.output_format
    if config is not None:
        form = config.format or form
        found["reasoning_effort"] = config.effort
    if form is not None:
        found["response_format"] = ResponseFormat("json_schema", {"name": "answer", "schema": form.schema})
    return found


def _messages(request: Conversation, strip_preamble: bool) -> list[Message]:
    turns = list(request.messages)
    system = _texts(request.system) if request.system is not None else []
    while turns and isinstance(turns[0], SystemTurn):
        system += _texts(turns.pop(0).content)
    if strip_preamble and system and (preamble := _PREAMBLE.match(system[0])):
        system[:1] = [rest] if (rest := system[0][preamble.end() :]) else []
    messages = [Message("system", content_of(system))] if system else []
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    for turn in turns:
        match turn:
            case UserTurn():
                messages += _user(turn, names)
            case AssistantTurn():
                messages.append(_assistant(turn, names))
            case SystemTurn():
                messages.append(Message("system", content_of(_texts(turn.content))))
    return joined(messages or [Message("user", "")])


def _user(turn: UserTurn, names: dict[str, str]) -> Iterator[Message]:
    if isinstance(turn.content, str):
        yield Message("user", turn.content)
        return
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            texts = _texts(block.content) if block.content is not None else []
            if block.is_error:
                texts = [f"Error: {texts[0]}", *texts[1:]] if texts else ["Error"]
            name = names.get(block.tool_use_id)
            yield Message("tool", content_of(texts), tool_call_id=block.tool_use_id, name=name)
    if texts := _texts(turn.content):
        yield Message("user", content_of(texts))
    elif not any(isinstance(block, ToolResultBlock) for block in turn.content):
        yield Message("user", "")


def _assistant(turn: AssistantTurn, names: dict[str, str]) -> Message:
    if isinstance(turn.content, str):
        return Message("assistant", turn.content)
    thoughts = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    names |= {call.id: call.function.name for call in calls if call.id is not None}
    texts = _texts(turn.content)
    content = content_of(texts) if texts or not calls else None
    reasoning = "\n".join(thoughts) if thoughts else None
    return Message("assistant", content, tool_calls=calls or None, reasoning_content=reasoning)


def _call(block: ToolUseBlock) -> ToolCall:
    return ToolCall(Function(block.name, msgspec.json.encode(block.input).decode()), block.id)


def _says(turn: AssistantTurn) -> bool:
    return bool(turn.content.strip() if isinstance(turn.content, str) else "".join(_texts(turn.content)).strip())


def _texts(content: str | Iterable[Any]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content if isinstance(block, TextBlock)]
