"""Errors in Ollama's form."""

from typing import Any

from dynamod.http.errors import ErrorForm
from dynamod.message.errors import RequestError
from dynamod.message.hints import printable


def error_value(error: RequestError, _status: int = 0, _request_id: str = "") -> dict[str, Any]:
    """`{"error": TEXT}`. Clients look for the words "not found" to offer a download."""
    message = printable(str(error))
    return {"error": f"model not found: {message}" if error.code == "model_not_found" else message}


class InUse(RequestError):
    """409: the model is being served."""

    status = 409
    kind = "invalid_request_error"
    code_default = "model_in_use"


OLLAMA = ErrorForm("TextError", error_value)
