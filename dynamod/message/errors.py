"""Errors that a user can cause or should read, as one small tree.

DynamodError
  + UserError              a command line, file or setting is wrong; one line says what to do
  + RequestError           a request cannot be served; carries what an OpenAI error object needs
    + BadRequest           400, names the field
    + NotFound             404, unknown model
    + TooLarge             413
    + Overloaded           503 (or 529), no worker can take the request now; the client may retry
    + EngineFailed         502, the engine died or broke while working on it
    + TimedOut             504, one of the request's clocks passed
    + Cancelled            the client left; the answer has no reader
"""

from typing import ClassVar


class DynamodError(Exception):
    """Base of everything dynamod raises on purpose."""


class UserError(DynamodError):
    """A mistake in a command, file or setting. `hint` says what to do; both print as one line without traceback."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 2) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code

    def line(self) -> str:
        """Message and hint as the one line a terminal shows."""
        message = str(self)
        return f"{message}; {self.hint}" if self.hint else message


class RequestError(DynamodError):
    """A request that ends with an error. `kind` and `code` are OpenAI's `type` and `code`; `param` names the field."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code_default: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or self.code_default
        self.retry_after = retry_after  # seconds, sent as Retry-After


class BadRequest(RequestError):
    """The request itself is wrong."""

    status = 400
    kind = "invalid_request_error"


class NotFound(RequestError):
    """The model (or other named thing) does not exist."""

    status = 404
    kind = "invalid_request_error"
    code_default = "model_not_found"


class TooLarge(RequestError):
    """The body is larger than the limit."""

    status = 413
    kind = "invalid_request_error"
    code_default = "request_too_large"


class Overloaded(RequestError):
    """No instance can take the request now."""

    status = 503
    kind = "service_unavailable"
    code_default = "no_workers"


class EngineFailed(RequestError):
    """The engine failed while it worked on the request."""

    status = 502
    kind = "server_error"
    code_default = "engine_failed"


class Internal(RequestError):
    """A bug of ours. The log has the traceback, the client a sentence."""

    code_default = "internal_error"


class PoisonRequest(RequestError):
    """The request ended two workers, the second one while it was alone there."""

    status = 422
    kind = "invalid_request_error"
    code_default = "poison_request"


class TimedOut(RequestError):
    """A clock of the request passed: queue, first token, gap or total."""

    status = 504
    kind = "server_error"
    code_default = "timeout"


class Cancelled(RequestError):
    """The client left."""

    status = 499
    kind = "cancelled"
    code_default = "cancelled"


REQUEST_ERRORS: dict[str, type[RequestError]] = {
    error.__name__: error
    for error in (
        BadRequest,
        NotFound,
        TooLarge,
        Overloaded,
        EngineFailed,
        Internal,
        PoisonRequest,
        TimedOut,
        Cancelled,
    )
}
"""By class name: how an error travels in a frame (`Failed.error`) and becomes itself again."""


def unsupported(param: str, message: str) -> BadRequest:
    """A field asks for something that is not served, and would otherwise be ignored."""
    return BadRequest(message, param=param, code="unsupported_parameter")
