"""Messages and tools of a chat request: what they may be, and the plain dicts that chat templates read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import REASONING_NAMES, ChatRequest, Message, Part, ToolCall

from .contents import ROLES, Form
from .template import ChatTemplate, read_float

NO_OBJECT = "INVALID_JSON"
"""Member that has arguments which are no JSON object; Anthropic's manual gives this name."""
_arguments = msgspec.json.Decoder(dict[str, Any], float_hook=read_float)

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")

OTHER_ROLE = "[A-Za-z][A-Za-z0-9_. -]{0,31}"
"""A role that a chat template may know, like `ipython`, `control` or `document 1`. No marker of a template fits."""
_other_role = re.compile(OTHER_ROLE)
TOOL_NAME = "^[a-zA-Z0-9_.-]{1,128}$"
_tool_name = re.compile(TOOL_NAME)
_SPEECHLESS = ("assistant", "tool", "function")
"""Roles whose messages may have no content."""


def check_messages(messages: Sequence[Message]) -> None:
    """Each message has a role and says something, in text. Raises BadRequest.

    Whether a role that is not one of OpenAI's is known, only the chat template says: `check_roles`.
    """
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if message.role not in ROLES and (wrong := _wrong_role(message.role)):
            raise BadRequest(f"`{where}.role` is {message.role[:40]!r}; {wrong}", param=f"{where}.role")
        if message.content is None and message.role not in _SPEECHLESS:
            raise BadRequest(f"`{where}.content` is required", param=f"{where}.content")
        for name in ("audio", "function_call"):
            if getattr(message, name) is not None:
                raise unsupported(f"{where}.{name}", f"`{where}.{name}` is not served")
        if message.role == "tool" and not message.tool_call_id:
            raise BadRequest(f"`{where}.tool_call_id` is required", param=f"{where}.tool_call_id")
        if message.role == "assistant" and not _says(message):
            text = f"`{where}` needs `content` or `tool_calls`"
            raise BadRequest(text, param=f"{where}.content")
        if isinstance(message.content, list):
            for number, part in enumerate(message.content):
                _check_part(part, f"{where}.content[{number}]")
        for number, call in enumerate(message.tool_calls or ()):
            _check_call(call, f"{where}.tool_calls[{number}].function")


def _wrong_role(role: str) -> str | None:
    """What is wrong about a role that is not one of OpenAI's: a slip of the pen, or no name."""
    from difflib import get_close_matches  # most requests have no such role

    if meant := get_close_matches(role.lower(), ROLES, 1, 0.8):
        return f"did you mean {meant[0]}?"
    return None if _other_role.fullmatch(role) else f"it must be one of {', '.join(ROLES)}"


def check_roles(messages: Sequence[Message], template: ChatTemplate) -> None:
    """The template shows the messages of each role that is not one of OpenAI's. Raises BadRequest."""
    for place, message in enumerate(messages):
        if message.role not in ROLES and not template.takes(message.role):
            field = f"messages[{place}].role"
            known = f"it must be one of {', '.join(ROLES)}, or a role that the chat template of the model shows"
            raise BadRequest(f"`{field}` is {message.role!r}; {known}", param=field)


def _says(message: Message) -> bool:
    """Whether an assistant's message has anything in it."""
    return bool(message.tool_calls) or any(
        one is not None
        for one in (message.content, message.refusal, *[getattr(message, name) for name in REASONING_NAMES])
    )


def _check_call(call: ToolCall, where: str) -> None:
    if not call.function.name:
        raise BadRequest(f"`{where}.name` must not be empty", param=f"{where}.name")
    arguments = call.function.arguments
    if arguments is not None and not isinstance(arguments, str | dict):
        text = f"`{where}.arguments` must be JSON text or an object"
        raise BadRequest(text, param=f"{where}.arguments")


def _check_part(part: Part, where: str) -> None:
    if part.type != "text":
        text = f"`{where}.type` is {part.type[:40]!r}; only text parts are served"
        raise BadRequest(text, param=f"{where}.type", code="unsupported_content")
    if part.text is None:
        raise BadRequest(f"`{where}.text` is required", param=f"{where}.text")


def check_tools(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
    """Tools are functions with names and schemas, and a tool that must be called is one of them."""
    if tools is None and choice is None:
        return
    names = [_function_name(tool) for tool in tools or ()]
    for position, tool in enumerate(tools or ()):
        where = f"tools[{position}]"
        if tool.get("type") == "custom":
            raise unsupported(f"{where}.type", f"`{where}` is a custom tool; only functions are tools of a chat")
        if tool.get("type") != "function" or not names[position]:
            raise BadRequest(f"`{where}` must be a function with a name", param=where)
        if not _tool_name.fullmatch(names[position]):
            why = (
                f"`{where}.function.name` is {names[position][:40]!r}; it must be 1 to 128 of a-z, A-Z, 0-9, _, - and ."
            )
            raise BadRequest(why, param=f"{where}.function.name")
        parameters = tool["function"].get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            field = f"{where}.function.parameters"
            raise BadRequest(f"`{field}` must be a JSON Schema, which is an object", param=field)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest('`tool_choice` must be "none", "auto", "required" or a function', param="tool_choice")
        if choice == "required" and not names:
            raise BadRequest('`tool_choice` "required" needs `tools`', param="tool_choice")
    elif isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        raise BadRequest(_not_allowed(choice, names), param="tool_choice")
    elif choice is not None and (name := _function_name(choice)) not in names:
        raise BadRequest(f"`tool_choice` names {name!r}, which is not among the tools", param="tool_choice")


def _not_allowed(choice: Mapping[str, Any], names: Sequence[str]) -> str:
    """What is wrong with a choice of the type allowed_tools. `names`: of the tools."""
    given = choice.get("allowed_tools", choice)
    listed = given.get("tools") if isinstance(given, Mapping) else None
    asked = [_function_name(one) for one in listed] if isinstance(listed, list) else []
    if unknown := [name for name in asked if name and name not in names]:
        return f"`tool_choice.allowed_tools` names {unknown[0][:128]!r}, which is not among the tools"
    return "`tool_choice.allowed_tools` needs a `mode`, auto or required, and `tools`, a list of functions"


def _function_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def as_dict(message: Message, form: Form = "text") -> dict[str, Any]:
    """A message for a template that takes its content in this `form`.

    Without content it is empty, as in vLLM: many templates take no none.
    """
    found: dict[str, Any] = {"role": message.role, "content": _content(message.content, form)}
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    for key in ("name", "tool_call_id"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    given = [getattr(message, name) for name in REASONING_NAMES]
    reasoning = next((one for one in given if one is not None), None)
    if reasoning is not None:
        found["reasoning_content"] = found["reasoning"] = reasoning
        if not (found["content"] and message.tool_calls):  # gpt-oss refuses a call with both
            found["thinking"] = reasoning
    return found


def _content(content: str | list[Part] | None, form: Form) -> str | list[dict[str, str]]:
    if isinstance(content, list) and form != "text":
        return [{"type": "text", "text": part.text or ""} for part in content]
    text = text_of(content) or ""
    return [{"type": "text", "text": text}] if form == "parts" else text


def text_of(content: str | list[Part] | None) -> str | None:
    """Text parts joined by newlines (as vLLM and Dynamo do where a template takes text alone)."""
    if content is None or isinstance(content, str):
        return content
    return "\n".join([part.text or "" for part in content])


def last_text(message: Message) -> str:
    """What a message says at its end."""
    content = message.content
    return (content[-1].text if isinstance(content, list) and content else text_of(content)) or ""


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates write arguments with `tojson`, so JSON text becomes the object it is.

    Any other text was written by a model that is to see what it wrote: an object has it as its only member.
    """
    arguments = call.function.arguments
    if isinstance(arguments, str | dict):
        try:
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments)
            arguments = _arguments.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            arguments = {NO_OBJECT: arguments} if isinstance(arguments, str) and arguments else {}
    found: dict[str, Any] = {"type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
    return found if call.id is None else {"id": call.id, **found}


def tools_of(request: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools that the template shows: none when there are none or tool_choice is "none"."""
    check_tools(request.tools, request.tool_choice)
    return None if request.tool_choice == "none" else request.tools or None


def kwargs_of(request: ChatRequest) -> dict[str, Any]:
    """Further variables for the template: `chat_template_kwargs` and its older name, and reasoning_effort."""
    found = {**(request.chat_template_args or {}), **(request.chat_template_kwargs or {})}
    for key in _RESERVED:
        if key in found:
            raise BadRequest(f"`chat_template_kwargs` must not set {key}", param="chat_template_kwargs")
    if request.reasoning_effort is not None:
        found.setdefault("reasoning_effort", request.reasoning_effort)
    if request.reasoning_effort == "none":  # which templates say in other words
        found.setdefault("enable_thinking", False)
        found.setdefault("thinking", False)
    return found


def last_user_text(request: ChatRequest) -> str:
    """The last user message as it is, for `nvext.use_raw_prompt`. Raises BadRequest when there is none."""
    for message in reversed(request.messages):
        if message.role == "user":
            return text_of(message.content) or ""
    raise BadRequest("`nvext.use_raw_prompt` needs a user message", param="messages")
