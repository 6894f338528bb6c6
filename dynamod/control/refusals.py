"""Why a command was not done: as a record, for the clients of the control socket and for other nodes."""

import msgspec

from dynamod.message.control import LAST_WORKER
from dynamod.message.errors import DynamodError, UserError

from .last_worker import LastWorker
from .names import UnknownName

UNKNOWN_COMMAND = "unknown_command"


class UnknownCommand(UserError):
    """No command has that name."""


class Refusal(msgspec.Struct, frozen=True):
    """`status`: of HTTP. `message`, `hint`: as of a UserError. `code`: of a refusal that the client may answer."""

    status: int = 400
    message: str = ""
    hint: str = ""
    code: str = ""


class RefusedElsewhere(UserError):
    """Another node has refused a command."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, refusal.hint)
        self.refusal = refusal


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an error that a command has raised."""
    match error:
        case RefusedElsewhere():
            return error.refusal
        case LastWorker():
            return Refusal(409, str(error), error.hint, LAST_WORKER)
        case UnknownCommand():
            return Refusal(404, str(error), error.hint, UNKNOWN_COMMAND)
        case UnknownName():
            return Refusal(404, str(error), error.hint)
        case UserError():
            return Refusal(400, str(error), error.hint)
        case TimeoutError():
            return Refusal(504, "the component did not answer in time", "try dynamo inspect")
        case DynamodError():
            return Refusal(400, str(error))
        case _:
            return Refusal(500, f"{type(error).__name__}: {error}", "see the daemon's log")
