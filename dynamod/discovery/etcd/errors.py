"""What can go wrong between a node and etcd, and the one place where gRPC's errors become ours."""

import re
from typing import Any

from dynamod.message.errors import DynamodError


class EtcdError(DynamodError):
    """Base of what etcd, or the way to it, answers."""


class EtcdAway(EtcdError):
    """The member does not answer in time, or cannot serve now; trying again helps."""


class EtcdRefused(EtcdError):
    """Wrong credentials, rights or certificates, no space left: a person has to mend it."""


class Rejoin(EtcdError):
    """Other values are taken from now on: all that stands in etcd is to be read again."""


class TokenInvalid(EtcdAway):
    """The token of our login has expired, or etcd has forgotten it."""


class Compacted(EtcdError):
    """The history to be followed from is not kept any more; a snapshot helps."""


class LeaseMissing(EtcdError):
    """The lease does not exist (any more)."""


class LeaseTaken(EtcdError):
    """The lease id asked for exists already."""


class TooMuch(EtcdError):
    """The request is larger than etcd takes."""


_BY_TEXT: dict[str, type[EtcdError]] = {
    "requested lease not found": LeaseMissing,
    "lease already exists": LeaseTaken,
    "request is too large": TooMuch,
    "required revision has been compacted": Compacted,
    "invalid auth token": TokenInvalid,
    "revision of auth store is old": TokenInvalid,
    "revision in header is old": TokenInvalid,
    "authentication failed": EtcdRefused,
    "user name is empty": EtcdRefused,
    "permission denied": EtcdRefused,
    "CERTIFICATE_VERIFY_FAILED": EtcdRefused,
    "hostname verification check failed": EtcdRefused,
    "Hostname Verification Check failed": EtcdRefused,
    "ALERT_BAD_CERTIFICATE": EtcdRefused,
    "ALERT_CERTIFICATE_": EtcdRefused,
    "ALERT_UNKNOWN_CA": EtcdRefused,
    "Peer name": EtcdRefused,
}
"""Parts of etcd's own error texts; they are stable (clients in every language compare them), its codes are coarse."""

_PASSING = {"UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"}
_NOISE = re.compile(r"^(etcdserver: |failed to connect to all addresses; last error: (\w+: )?)")


CLOSED = "the connection was closed before a call or during it"
"""Of a call at the end of its session: it depends on a turn of the loop which of the two it is."""


def translate(error: Any) -> EtcdError:
    """Our error for one of gRPC's: an answer (it has `code()` and `details()`), or a channel that is closed."""
    if not hasattr(error, "code"):
        return EtcdAway(CLOSED if "Channel is closed" in str(error) else str(error) or "the stream ended")
    code, details = error.code().name, str(error.details() or "")
    text = _NOISE.sub("", details) or code.lower().replace("_", " ")
    for part, kind in _BY_TEXT.items():
        if part in details:
            return kind(text)
    if code == "DEADLINE_EXCEEDED":
        return EtcdAway("no answer in time")
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        return TooMuch(text)
    return EtcdAway(text) if code in _PASSING else EtcdRefused(text)
