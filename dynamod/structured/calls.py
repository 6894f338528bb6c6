"""The form of an answer that has to call tools: `tool_choice` is `required`, or names a function.

Where the model's own format is known, the form is that format with the schemas of the tools inside. Else it is an
object with name and arguments, or a list of them where several calls may come.
"""

from typing import Any

from dynamod.message.openai import ChatRequest
from dynamod.message.schemas import moved, parameters_of

from .lengths import bound


def calls_schema(request: ChatRequest) -> dict[str, Any]:
    """The JSON Schema of the answer: `request.must_call` holds.

    The parameters of each tool are a definition of their own, and what they refer to is looked up there.
    """
    tools = [tool["function"] for tool in request.tools or ()]
    named = request.tool_choice["function"]["name"] if isinstance(request.tool_choice, dict) else None
    wanted = [tool for tool in tools if named in (None, tool["name"])]
    definitions = {
        f"tool{place}": moved(parameters_of(tool), f"#/$defs/tool{place}") for place, tool in enumerate(wanted)
    }
    calls = [_call(tool["name"], name) for tool, name in zip(wanted, definitions, strict=True)]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if named is None and request.parallel_tool_calls is not False:
        call = {"type": "array", "items": call, "minItems": 1}
    schema = {**call, "$defs": definitions}
    bound(schema, steps=True)
    return schema


def _call(name: str, definition: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{definition}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
