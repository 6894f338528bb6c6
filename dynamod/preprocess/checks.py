"""What a request may be for one model: plain functions that raise BadRequest naming the field, or say nothing.

Types and ranges have been checked when the request was decoded (`message.openai`). None always means "not sent".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message.errors import BadRequest, unsupported

TOOL_NAME = "^[a-zA-Z0-9_.-]{1,128}$"
_NAME = re.compile(TOOL_NAME)


def token_ids(ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Every id is one of the vocabulary."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        place, index = next((place, index) for place, index in enumerate(ids) if not 0 <= index < vocab_size)
        known = f"token ids of this model are 0 to {vocab_size - 1}"
        raise BadRequest(f"`{param}[{place}]` is {index}, but {known}", param=param)


def logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    """Return the bias by token id."""
    if not bias:
        return None
    found = {int(key): value for key, value in bias.items()}
    if (largest := max(found)) >= vocab_size:
        known = f"token ids of this model are 0 to {vocab_size - 1}"
        raise BadRequest(f"`logit_bias` has the key {largest}, but {known}", param="logit_bias")
    return found


def context(prompt_tokens: int, context_length: int, param: str, *, at_least: bool = False) -> None:
    """The prompt leaves room for at least one token. A context length of 0 is not known.

    `at_least`: `prompt_tokens` is only a lower bound.
    """
    if prompt_tokens < 1:
        raise BadRequest("The prompt is empty.", param=param)
    if context_length and prompt_tokens >= context_length:
        least = "at least " if at_least else ""
        limit = f"This model's maximum context length is {context_length} tokens"
        why = f"{limit}, but the prompt has {least}{prompt_tokens} tokens and at least one more must fit."
        raise BadRequest(why, param=param, code="context_length_exceeded")


def whole_input(tokens: int, context_length: int, param: str) -> None:
    """A text whose vector is wanted fits into the context, where nothing follows it. A length of 0 is not known."""
    if tokens < 1:
        raise BadRequest(f"`{param}` is empty", param=param)
    if context_length and tokens > context_length:
        why = f"`{param}` has {tokens} tokens, and this model's maximum context length is {context_length} tokens"
        raise BadRequest(why, param=param, code="context_length_exceeded")


def tools(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
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
        if not _NAME.fullmatch(names[position]):
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
