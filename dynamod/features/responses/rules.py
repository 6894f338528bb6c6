"""What is checked of requests beyond types and ranges, as JSON Schema (`ingress.api.rules`)."""

from typing import Any

from dynamod.ingress.api.rules import NAME, NULL, TEXT, WORDS, either, items, typed

from .tools import HOSTED

_INPUT_PARTS = items({"$ref": "#/components/schemas/InputPart"})
_INPUT_ITEMS = (
    {
        "properties": {
            "type": {"const": "message"},
            "role": {"enum": ["user", "system", "developer", "assistant"]},
            "content": either(TEXT, _INPUT_PARTS),
        },
        "required": ["role", "content"],
    },
    typed("function_call", call_id=TEXT, name=TEXT, arguments=TEXT),
    typed("function_call_output", call_id=TEXT, output=either(TEXT, _INPUT_PARTS)),
    typed("custom_tool_call", call_id=TEXT, name=TEXT, input=TEXT),
    typed("custom_tool_call_output", call_id=TEXT, output=either(TEXT, _INPUT_PARTS)),
    typed("reasoning"),
    typed("item_reference", id=TEXT),
)
_PART_TYPES = {"enum": ["input_text", "output_text", "text", "summary_text", "reasoning_text"]}
_PART = {"type": "object", "properties": {"type": _PART_TYPES, "text": TEXT}, "required": ["type", "text"]}
_NAMED = either(typed("function", name=WORDS), typed("custom", name=WORDS))
_GRAMMAR = typed("grammar", syntax={"enum": ["lark", "regex"]}, definition=TEXT)
_FORMAT = {"format": either(NULL, typed("text"), _GRAMMAR)}
_FUNCTION = typed("function", name=NAME)
_CUSTOM = typed("custom", name=NAME)
_CUSTOM["properties"] |= _FORMAT
_NAMESPACE = typed("namespace", name=NAME, tools=either(NULL, items(either(_FUNCTION, _CUSTOM))))

_REQUEST: dict[str, Any] = {
    "properties": {
        "tool_choice": either({"enum": [None, "none", "auto", "required"]}, _NAMED),
        "background": {"enum": [None, False]},
        "conversation": NULL,
        "prompt": NULL,
        # Some models offer log probabilities.
        "top_logprobs": {"enum": [None, 0]},
        "include": either(NULL, items({"type": "string", "not": {"const": "message.output_text.logprobs"}})),
    }
}

VALUES: dict[str, Any] = {
    "FunctionTool": {"anyOf": [_FUNCTION, _CUSTOM, _NAMESPACE, {"properties": {"type": {"enum": sorted(HOSTED)}}}]},
    "TextConfig": {"properties": {"verbosity": {"enum": [None, "medium"]}}},
    **dict.fromkeys(("ResponsesRequest", "InputTokensRequest"), _REQUEST | {"examples": [{"input": "Hello"}]}),
    "InputItem": {"anyOf": [*_INPUT_ITEMS]},
    "InputPart": either(_PART, typed("refusal", refusal=TEXT)),
}
