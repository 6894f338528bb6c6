"""The command of the control socket that `dynamo audit` asks."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.extension.command import Command

MOST = 10_000
"""Entries of an answer."""

MOST_ELSEWHERE = 500
"""Entries of the answer of another node, which is one message: NATS takes 1 MB."""


class AuditArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`lines`: how many of the last entries the answer has. The others are the flags of `dynamo audit`."""

    lines: Annotated[int, Meta(ge=0, le=MOST, description=f"give a number from 0 to {MOST}")] = 0
    since: str = ""
    until: str = ""
    key: str = ""
    model: str = ""
    status: str = ""
    kind: str = ""


class Audited(msgspec.Struct, frozen=True):
    """`folders`: with the files of the graphs that run. `entries`: as the files have them, without bodies.

    `unreadable`: lines that are no entries.
    """

    folders: list[str] = msgspec.field(default_factory=list[str])
    entries: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    unreadable: int = 0


AUDIT = Command(
    "audit",
    AuditArguments,
    Audited,
    "The folders with the audit files of the graphs that run; with `lines` the last entries of these.",
)
