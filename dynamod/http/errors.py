"""Errors of the server itself, and how any RequestError becomes OpenAI's error object."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web

from dynamod.message.errors import BadRequest, Internal, RequestError
from dynamod.message.hints import printable

from .answer import json_response


class Unauthorized(BadRequest):
    """401: no API key, or a wrong one."""

    status = 401
    code_default = "invalid_api_key"


class Forbidden(BadRequest):
    """403: a setting of the server does not allow it."""

    status = 403
    code_default = "not_allowed"


class NoRoute(BadRequest):
    """404: there is nothing at this path."""

    status = 404
    code_default = "unknown_url"


class NoMethod(BadRequest):
    """405: the path exists, the method does not. `allow` lists what does."""

    status = 405
    code_default = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class UnsupportedMedia(BadRequest):
    """415: the body is not of a kind that is read here. `accept`: the encodings that are, when it is about them."""

    status = 415
    code_default = "unsupported_media_type"

    def __init__(self, message: str, accept: str = "") -> None:
        super().__init__(message)
        self.accept = accept


class UrlTooLong(BadRequest):
    """414: the request line is too long."""

    status = 414
    code_default = "url_too_long"

    def __init__(self) -> None:
        super().__init__("the URL is longer than this server reads")


class HeaderTooLarge(BadRequest):
    """431: a header field is too large, or there are too many."""

    status = 431
    code_default = "header_too_large"

    def __init__(self) -> None:
        super().__init__("a header is larger than this server reads, or there are too many")


class TooSlow(RequestError):
    """408: the client has stopped to send its request."""

    status = 408
    kind = "invalid_request_error"
    code_default = "request_timeout"


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's `{"error": {...}}`."""
    return {"error": {"message": printable(str(error)), "type": error.kind, "param": error.param, "code": error.code}}


class Limit(NamedTuple):
    """A limit of a key: `requests` or `tokens` of a minute, and what is left. `full_in`: seconds until all is left."""

    name: str
    size: int
    remaining: int
    full_in: float


def _no_limits(_limits: Sequence[Limit]) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How the routes of one API say errors.

    `make`: the JSON value of an error with this HTTP status, for the request with this id. `schema`: its name in
    /openapi.json. `id_header`: the header of every answer in which the API has the request's id, in addition to
    x-request-id. `limits`: further headers for the limits of a key, in addition to OpenAI's. `asked_by`: a header of
    requests whose clients read this form also at routes that have OpenAI's.
    """

    schema: str
    make: Callable[[RequestError, int, str], dict[str, Any]]
    id_header: str = ""
    limits: Callable[[Sequence[Limit]], dict[str, str]] = _no_limits
    asked_by: str = ""


OPENAI = ErrorForm("Error", lambda error, _status, _request_id: error_object(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """Headers that belong to an error."""
    headers = {}
    if error.retry_after is not None and math.isfinite(error.retry_after):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, NoMethod):
        headers["Allow"] = error.allow
    if isinstance(error, UnsupportedMedia) and error.accept:
        headers["Accept-Encoding"] = error.accept
    if isinstance(error, Internal):
        headers["x-should-retry"] = "false"  # OpenAI's SDKs retry a 500 else, and a bug stays a bug
    return headers


def error_response(error: RequestError, status: int, form: ErrorForm = OPENAI, request_id: str = "") -> web.Response:
    """The error as an answer with a body."""
    return json_response(form.make(error, status, request_id), status, error_headers(error))
