"""What is checked beyond types and ranges, as JSON Schema: a body that /openapi.json allows is not refused.

`msgspec.Meta` at the fields of `message.openai` is the place of types and ranges, and shows in the document on its own.
It cannot say what depends on another field (`rules` of an endpoint, in addition to its `check`), and what is said here
and in `values` of an endpoint: fields of type `Any`, which text engines get as the client has sent them, roles with and
without content, lists of one kind. Where JSON Schema cannot say a rule (one number below another), it says a stricter
one. A test sends bodies that the document allows, so a rule that is missing here is found.
"""

from collections.abc import Mapping
from typing import Any

from dynamod.preprocess.contents import ROLES
from dynamod.preprocess.conversation import OTHER_ROLE, TOOL_NAME

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
WORDS: Schema = {"type": "string", "minLength": 1}
MANY: Schema = {"minItems": 1, "maxItems": 2048}


def only(**values: tuple[Any, ...]) -> Schema:
    """Each of these fields is one of its values, when it is there."""
    return {"properties": {name: {"enum": [*allowed]} for name, allowed in values.items()}}


def set_to(name: str, value: Any, **others: tuple[Any, ...]) -> Schema:
    """The field is there and has this value; of the others each is one of its values, when it is there."""
    return {"properties": {name: {"const": value}, **only(**others)["properties"]}, "required": [name]}


def either(*rules: Schema) -> Schema:
    """At least one of the rules holds."""
    return {"anyOf": [*rules]}


def items(schema: Schema, **more: Any) -> Schema:
    """An array of such values."""
    return {"type": "array", "items": schema, **more}


def typed(kind: Any, without: str = "", **properties: Schema) -> Schema:
    """An object of this `type`, which has these properties too, and not the one called `without`, except null."""
    known = {"type": {"const": kind}, **properties}
    return {"type": "object", "properties": known | ({without: NULL} if without else {}), "required": [*known]}


TEXT: Schema = {"type": "string"}
_PARTS = items({"$ref": "#/components/schemas/Part"})
_SAID = items(either(_PARTS["items"], typed("refusal", "text", refusal=TEXT)))
_CALLS = items({"$ref": "#/components/schemas/ToolCall"}, minItems=1)
_OTHER_ROLE: Schema = {
    "type": "string",
    "pattern": f"^{OTHER_ROLE}$",
    "not": {"enum": [*ROLES]},
    "description": "a role that the chat template of the model shows",
}
_ROLES = (
    {
        "properties": {"role": {"enum": ["developer", "system", "user"]}, "content": either(TEXT, _PARTS)},
        "required": ["content"],
    },
    {
        "properties": {"role": {"const": "tool"}, "content": either(NULL, TEXT, _PARTS), "tool_call_id": WORDS},
        "required": ["tool_call_id"],
    },
    {"properties": {"role": {"const": "function"}, "content": either(NULL, TEXT, _PARTS)}},
    {"properties": {"role": {"const": "assistant"}, "content": either(TEXT, _SAID)}, "required": ["content"]},
    {"properties": {"role": {"const": "assistant"}, "tool_calls": _CALLS}, "required": ["tool_calls"]},
    {"properties": {"role": _OTHER_ROLE, "content": either(TEXT, _PARTS)}, "required": ["content"]},
)
NAME: Schema = {"type": "string", "pattern": TOOL_NAME}
_FUNCTION = {"name": NAME, "parameters": either(NULL, {"type": "object"})}
_TOOL = typed("function", function={"type": "object", "properties": _FUNCTION, "required": ["name"]})
_IDS = items({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)
TEXTS = either(WORDS, items(WORDS, **MANY))
"""One text or a list of them."""
TEXTS_OR_IDS = either(*TEXTS["anyOf"], _IDS, items(_IDS, **MANY))
"""One text, a list of texts, token ids, or a list of lists of token ids."""


SHARED: dict[str, Schema] = {
    "Message": {
        "properties": {"content": either(NULL, TEXT, _SAID), "audio": NULL, "function_call": NULL},
        "anyOf": [*_ROLES],
    },
    "Part": typed("text", "refusal", text=TEXT),
    "NvExt": {"properties": {"max_thinking_tokens": NULL}},
    "Function": {
        "properties": {"name": WORDS, "arguments": either({"enum": [None, "", "{}"]}, {"type": "object"})},
    },
    "ResponseFormat": {"properties": {"type": {"enum": ["text", "json_object", "json_schema"]}}},
    "ChatRequest": {
        "examples": [{"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 50}],
        "properties": {
            "tools": either(NULL, items(_TOOL)),
            "tool_choice": either({"enum": [None, "none", "auto", "required"]}, _TOOL),
        },
    },
    "CompletionRequest": {
        "examples": [{"prompt": "The capital of France is", "max_tokens": 20}],
        "properties": {"prompt": TEXTS_OR_IDS},
    },
    "TokenizeRequest": {
        "examples": [{"prompt": "Hello"}],
        "properties": {"tools": either(NULL, items(_TOOL)), "chat_template": NULL},
    },
}
"""What holds for structs of the core, by name; structs of a feature are in `values` of its endpoints."""


def tighten(schemas: dict[str, Schema], values: Mapping[str, Schema]) -> None:
    """Add to schemas what `values` says of them by name: properties one by one, else whole keywords."""
    for name in values.keys() & schemas.keys():
        properties = schemas[name].get("properties", {}) | values[name].get("properties", {})
        schemas[name] |= {**values[name], "properties": properties}
