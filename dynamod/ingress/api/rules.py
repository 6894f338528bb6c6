"""What endpoints check beyond the types, as JSON Schema: a body that /openapi.json allows is not refused.

Where JSON Schema cannot say a rule (one number below another), it says a stricter one.
"""

from typing import Any

Schema = dict[str, Any]

_NULL = {"type": "null"}
_WORDS = {"type": "string", "minLength": 1}
_MANY = {"minItems": 1, "maxItems": 2048}


def only(**values: tuple[Any, ...]) -> Schema:
    """Each of these fields is one of its values, when it is there."""
    return {"properties": {name: {"enum": [*allowed]} for name, allowed in values.items()}}


def set_to(name: str, value: Any) -> Schema:
    """The field is there and has this value."""
    return {"properties": {name: {"const": value}}, "required": [name]}


def either(*rules: Schema) -> Schema:
    """At least one of the rules holds."""
    return {"anyOf": [*rules]}


def items(schema: Schema, **more: Any) -> Schema:
    """An array of such values."""
    return {"type": "array", "items": schema, **more}


GENERATION = (
    either(only(stream_options=(None,)), set_to("stream", True)),
    only(best_of=(None,)),
    either(only(min_tokens=(0, None)), only(max_tokens=(None,), max_completion_tokens=(None,))),
)
CHAT = (
    either(only(top_logprobs=(0, None)), set_to("logprobs", True)),
    either(only(tool_choice=(None, "none", "auto")), {"properties": {"tools": {"minItems": 1}}, "required": ["tools"]}),
)
_TEXTS = either(_WORDS, items(_WORDS, minItems=1))
COMPLETIONS = (
    either(only(echo=(False, None)), {"properties": {"prompt": _TEXTS, "logprobs": _NULL}}),
    either(only(n=(1, None)), {"properties": {"prompt": either(_WORDS, items({"type": "integer"}), {"maxItems": 16})}}),
)
_SAYS: Schema = {"properties": {"content": {"type": "string", "pattern": "[!-~]"}}, "required": ["content"]}
TOKENIZE = (
    either(
        {"properties": {"prompt": {"type": "string"}, "messages": _NULL}, "required": ["prompt"]},
        {"properties": {"prompt": _NULL, "messages": {"type": "array"}}, "required": ["messages"]},
    ),
    either(only(continue_final_message=(False, None)), only(add_generation_prompt=(False, None))),
    # What the last message says must be found again in the prompt; a schema cannot tell which one that is.
    either(only(continue_final_message=(False, None)), {"properties": {"messages": items(_SAYS)}}),
)


def typed(kind: Any, **properties: Schema) -> Schema:
    """An object of this `type`, which has these properties too."""
    return {"type": "object", "properties": {"type": {"const": kind}, **properties}, "required": ["type", *properties]}


_TEXT: Schema = {"type": "string"}
_PARTS = items({"$ref": "#/components/schemas/Part"})
_SAID = items(either(_PARTS["items"], typed("refusal", refusal=_TEXT)))
_ROLES = (
    {
        "properties": {"role": {"enum": ["developer", "system", "user"]}, "content": either(_TEXT, _PARTS)},
        "required": ["content"],
    },
    {"properties": {"role": {"enum": ["tool", "function"]}, "content": either(_NULL, _TEXT, _PARTS)}},
    {"properties": {"role": {"const": "assistant"}}},
)
_TOOL = typed("function", function={"type": "object", "properties": {"name": _WORDS}, "required": ["name"]})
_IDS = items({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)


def tighten(schemas: dict[str, Schema]) -> None:
    """Say in the schemas of single values what is checked of them."""
    for name, changes in {
        "Message": {"content": either(_NULL, _TEXT, _SAID), "audio": _NULL, "function_call": _NULL},
        "NvExt": {"max_thinking_tokens": _NULL},
        "ResponseFormat": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        "ChatRequest": {
            "tools": either(_NULL, items(_TOOL)),
            "tool_choice": either({"enum": [None, "none", "auto", "required"]}, _TOOL),
        },
        "CompletionRequest": {"prompt": either(_WORDS, items(_WORDS, **_MANY), _IDS, items(_IDS, **_MANY))},
        "TokenizeRequest": {"tools": either(_NULL, items(_TOOL)), "chat_template": _NULL},
    }.items():
        if name in schemas:
            schemas[name]["properties"] |= changes
    if "Message" in schemas:
        schemas["Message"]["anyOf"], schemas["Part"] = [*_ROLES], typed("text", text=_TEXT)
