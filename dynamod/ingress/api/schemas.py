"""Forms of answers, as JSON schemas for /openapi.json."""

from typing import Any

_REF = "#/components/schemas/"


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": required | optional, "required": list(required)}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_MAYBE_OBJECT = {"type": ["object", "null"]}
_REASON = {"type": ["string", "null"], "enum": ["stop", "length", "tool_calls", "content_filter", None]}
_ENVELOPE = {"id": _TEXT, "created": _NUMBER, "model": _TEXT, "system_fingerprint": _MAYBE_TEXT}

ANSWERS: dict[str, Any] = {
    "Any": {"type": "object"},
    "Event": {
        "description": "One server-sent event: `data` is a chunk as JSON, or [DONE]; `event`: error or annotation",
        "type": "object",
        "properties": {"data": _TEXT, "event": _TEXT},
    },
    "Error": _object(
        {"error": _object({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT})},
    ),
    "Usage": _object({"prompt_tokens": _NUMBER, "completion_tokens": _NUMBER, "total_tokens": _NUMBER}),
    "ChatAnswer": _object(
        _ENVELOPE
        | {
            "object": {"const": "chat.completion"},
            "service_tier": _MAYBE_TEXT,
            "usage": {"$ref": _REF + "Usage"},
            "choices": _list(
                _object(
                    {
                        "index": _NUMBER,
                        "finish_reason": _REASON,
                        "logprobs": _MAYBE_OBJECT,
                        "message": _object(
                            {
                                "role": {"const": "assistant"},
                                "content": _MAYBE_TEXT,
                                "refusal": _MAYBE_TEXT,
                                "tool_calls": {"type": ["array", "null"]},
                                "function_call": _MAYBE_OBJECT,
                                "audio": _MAYBE_OBJECT,
                            }
                        ),
                    }
                )
            ),
        }
    ),
    "CompletionAnswer": _object(
        _ENVELOPE
        | {
            "object": {"const": "text_completion"},
            "usage": {"$ref": _REF + "Usage"},
            "choices": _list(
                _object({"index": _NUMBER, "finish_reason": _REASON, "logprobs": _MAYBE_OBJECT, "text": _TEXT})
            ),
        }
    ),
    "Model": _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": _NUMBER, "owned_by": _TEXT},
        max_model_len=_NUMBER,
        context_length=_NUMBER,
    ),
    "ModelList": _object({"object": {"const": "list"}, "data": _list({"$ref": _REF + "Model"})}),
    "Health": _object(
        {"status": {"enum": ["healthy", "unhealthy"]}, "instances": {"type": "array"}},
        endpoints=_list(_TEXT),
        message=_TEXT,
    ),
    "Live": _object({"status": {"const": "live"}, "message": _TEXT}),
}
