"""Errors in Anthropic's form."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dynamod.http.errors import ErrorForm, Limit
from dynamod.message.errors import RequestError
from dynamod.message.hints import printable

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

NO_THREADS = "thread_unsupported_request"
"""Anthropic's code for a `thread` that cannot be had: its SDKs send the whole conversation then."""


def error_value(error: RequestError, status: int, request_id: str) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`; `details` where SDKs read a code in them.

    Agents look for the words "prompt is too long" to shorten their conversation.
    """
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    message = printable(str(error))
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    found: dict[str, Any] = {"type": kind, "message": message}
    if error.code == NO_THREADS:
        found["details"] = {"error_code": error.code}
    return {"type": "error", "error": found, "request_id": request_id}


def limit_headers(limits: Sequence[Limit]) -> dict[str, str]:
    """Anthropic's headers of the limits of a key; resets are times."""
    found: dict[str, str] = {}
    for one in limits:
        reset = datetime.now(UTC) + timedelta(seconds=one.full_in)
        name = f"anthropic-ratelimit-{one.name}"
        found |= {f"{name}-limit": str(one.size), f"{name}-remaining": str(one.remaining)}
        found[f"{name}-reset"] = reset.isoformat(timespec="seconds").replace("+00:00", "Z")
    return found


VERSION = "anthropic-version"
"""Anthropic's clients send this header with each request."""
ANTHROPIC = ErrorForm("MessagesError", error_value, "request-id", limit_headers, VERSION)
