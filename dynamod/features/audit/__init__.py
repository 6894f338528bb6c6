"""The audit log: one line per request and per command that changed something, and `dynamo audit`, which reads it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.extension.feature import Feature

from .settings import AuditSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamod.extension.command import CommandHandler
    from dynamod.http.server import Server
    from dynamod.ingress.api.endpoint import Frontend


def _records(frontend: "Frontend", server: "Server", where: Callable[[], tuple[str, str]]) -> object:
    own = msgspec.convert(frontend.settings, AuditSettings, from_attributes=True)
    if not own.on:
        return None
    from .ingress import AuditReader

    reader = AuditReader(own, where()[1])
    server.collectors.append(lambda: reader.families(server.metrics.prefix))
    return reader


def _daemon() -> type:
    from .part import AuditedCommands

    return AuditedCommands


def _command() -> object:
    from .cli import app

    return app


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .daemon import HANDLERS

    return HANDLERS


FEATURE = Feature(
    "audit",
    "a line per request and per changing command in files of JSON lines, off by default; dynamo audit reads them",
    uses=("cluster",),
    records=_records,
    daemon=_daemon,
    settings={"frontend": AuditSettings},
    commands={"audit": _command},
    controls=_controls,
)
