"""Whether a request whose stream broke is sent again: a pure function of what is known."""

from dataclasses import dataclass
from typing import Literal

from dynamod.message.errors import REQUEST_ERRORS, RequestError


@dataclass(frozen=True, slots=True)
class Broken:
    """What is known when a stream breaks.

    `retry`: the instance says that it did nothing for the request. `received`: tokens (or characters) of the answer
    that arrived. `exact`: the engine continues after given tokens exactly. `sends`: how often the request was sent.
    `limit`: how often it may move to another instance. `others`: whether an untried instance is ready. `long`: prompt
    and answer are longer than what may move. `form`: the answer keeps to a form, which `exact` has been asked about.
    """

    why: str
    retry: bool
    received: int
    exact: bool
    sends: int
    limit: int
    others: bool
    long: bool = False
    form: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`again`: send it to another instance, with what was received as prior output. Else the error to end with."""

    again: bool
    error: Literal["Overloaded", "EngineFailed", ""] = ""
    message: str = ""

    def exception(self) -> RequestError:
        """The error to end with."""
        return REQUEST_ERRORS[self.error](self.message, retry_after=1.0 if self.error == "Overloaded" else None)


def decide(broken: Broken) -> Verdict:
    """Send again where the client cannot tell the difference, and say why where that is not possible."""
    if broken.sends > broken.limit:
        tries = f"after {broken.sends} tries" if broken.sends > 1 else "and migration is off (limit 0)"
        return Verdict(False, "Overloaded" if broken.retry else "EngineFailed", f"{broken.why}, {tries}")
    if broken.received and not broken.exact:
        part = "in part, and keeps to a form" if broken.form else "in part"
        return Verdict(
            False, "EngineFailed", f"{broken.why}; this engine cannot continue an answer that has been sent {part}"
        )
    if broken.received and broken.long:
        return Verdict(False, "EngineFailed", f"{broken.why}; prompt and answer are longer than migration_max_seq_len")
    if not broken.others:
        return Verdict(False, "Overloaded", f"{broken.why}; no other instance is ready")
    return Verdict(True)
