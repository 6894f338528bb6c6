"""Messages and tools of a chat request as the plain dicts that chat templates read."""

from typing import Any

import msgspec

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message, Part, ToolCall

from . import checks

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")


def messages_of(request: ChatRequest) -> list[dict[str, Any]]:
    """One dict per message, content as text. Raises BadRequest naming the message that cannot be served."""
    if not request.messages:
        raise BadRequest("messages must not be empty", param="messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(request.messages)]


def _message(message: Message, param: str) -> dict[str, Any]:
    if not message.role:
        raise BadRequest(f"{param}.role must not be empty", param=f"{param}.role")
    found: dict[str, Any] = {"role": message.role, "content": text_of(message.content, f"{param}.content")}
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif found["content"] is None:
        # Templates tell a call by a content that is none; any other message without content says nothing.
        found["content"] = ""
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    return found


def text_of(content: str | list[Part] | None, param: str) -> str | None:
    """Text parts joined by newlines (as vLLM and Dynamo do). Raises BadRequest for a part that is no text."""
    if content is None or isinstance(content, str):
        return content
    texts: list[str] = []
    for place, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise BadRequest(
                f"{param}[{place}] is of type {part.type!r}, but this model takes only text",
                param=f"{param}[{place}].type" if part.type != "text" else f"{param}[{place}].text",
            )
        texts.append(part.text)
    return "\n".join(texts)


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates write arguments with `tojson`, so JSON text becomes the object it is; other text stays."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeEncodeError):
            pass
    found: dict[str, Any] = {"type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
    return found if call.id is None else {"id": call.id, **found}


def tools_of(request: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools that the template shows: none when there are none or tool_choice is "none"."""
    checks.tools(request.tools, request.tool_choice)
    return None if request.tool_choice == "none" else request.tools or None


def kwargs_of(request: ChatRequest) -> dict[str, Any]:
    """Further variables for the template: `chat_template_kwargs` and its older name, and reasoning_effort."""
    found = {**(request.chat_template_args or {}), **(request.chat_template_kwargs or {})}
    for key in _RESERVED:
        if key in found:
            raise BadRequest(f"chat_template_kwargs must not set {key}", param="chat_template_kwargs")
    if request.reasoning_effort is not None:
        found.setdefault("reasoning_effort", request.reasoning_effort)
    return found


def last_user_text(request: ChatRequest) -> str:
    """The last user message as it is, for `nvext.use_raw_prompt`."""
    for place in range(len(request.messages) - 1, -1, -1):
        if request.messages[place].role == "user":
            return text_of(request.messages[place].content, f"messages[{place}].content") or ""
    raise BadRequest("nvext.use_raw_prompt needs a user message", param="messages")
