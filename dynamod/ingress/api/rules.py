"""What is checked beyond types and ranges, as JSON Schema: a body that /openapi.json allows is not refused.

`msgspec.Meta` at the fields of `message.openai` is the place of types and ranges, and shows in the document by itself.
It cannot say what depends on another field (`rules` of an endpoint, beside its `check`), and what is said here: fields
of type `Any`, which text engines get as the client has sent them, roles with and without content, lists of one kind.
Where JSON Schema cannot say a rule (one number below another), it says a stricter one. A test sends bodies that the
document allows, so a rule that is missing here is found.
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


def typed(kind: Any, without: str = "", **properties: Schema) -> Schema:
    """An object of this `type`, which has these properties too, and not the one called `without`, but for null."""
    known = {"type": {"const": kind}, **properties}
    return {"type": "object", "properties": known | ({without: _NULL} if without else {}), "required": [*known]}


_TEXT: Schema = {"type": "string"}
_PARTS = items({"$ref": "#/components/schemas/Part"})
_SAID = items(either(_PARTS["items"], typed("refusal", "text", refusal=_TEXT)))
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
        "ToolChoice": {"name": _WORDS},
    }.items():
        if name in schemas:
            schemas[name]["properties"] |= changes
    if "ImageBlock" in schemas:
        schemas["ImageBlock"] = {"not": {}}
        schemas["ToolChoice"]["anyOf"] = [only(type=("auto", "any", "none")), {"required": ["name"]}]
    if "Message" in schemas:
        schemas["Message"]["anyOf"], schemas["Part"] = [*_ROLES], typed("text", "refusal", text=_TEXT)
