"""The form of an answer that has to call tools: `tool_choice` is `required`, or names a function.

It is the same for every model: an object with name and arguments, or a list of them where several calls may come.
"""

from typing import Any

from dynamod.message.openai import ChatRequest

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def calls_schema(request: ChatRequest) -> dict[str, Any]:
    """The JSON Schema of the answer: `request.must_call` holds.

    The parameters of each tool are a definition of their own, and what they refer to is looked up there.
    """
    tools = [tool["function"] for tool in request.tools or ()]
    named = request.tool_choice["function"]["name"] if isinstance(request.tool_choice, dict) else None
    wanted = [tool for tool in tools if named in (None, tool["name"])]
    definitions = {
        f"tool{place}": _moved(tool.get("parameters", ANY_OBJECT), f"#/$defs/tool{place}")
        for place, tool in enumerate(wanted)
    }
    calls = [_call(tool["name"], name) for tool, name in zip(wanted, definitions, strict=True)]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if named is None and request.parallel_tool_calls is not False:
        call = {"type": "array", "items": call, "minItems": 1}
    return {**call, "$defs": definitions}


def _call(name: str, definition: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{definition}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema that is at another place now: what it says of itself begins there."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _moved(value, place) for name, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found
