"""The files with the commands of a daemon, and where the audit files of a node are."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dynamod.extension.command import CommandHandler
from dynamod.graph.graph import FRONTEND
from dynamod.graph.typed import given
from dynamod.http.settings import from_environment
from dynamod.message.errors import UserError
from dynamod.observe.line_writer import LineWriter
from dynamod.observe.rotated import RotatedFile

from .commands import AUDIT, AuditArguments, Audited
from .lines import BODIES, dropped_line
from .reading import Entry, Files, Wanted, wanted_of
from .settings import AuditSettings

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext

FILE = "daemon"
"""Name of the file with commands."""
_FIELDS = frozenset(field.name for field in msgspec.structs.fields(AuditSettings))


class CommandFiles:
    """The files with the commands of a daemon, one in the audit folder of each graph."""

    def __init__(self) -> None:
        self._writers: dict[Path, LineWriter] = {}

    def write(self, line: bytes, places: Mapping[Path, AuditSettings]) -> None:
        """Write a line to the files in these folders."""
        for folder, settings in places.items():
            writer = self._writers.get(folder)
            if writer is None:
                file = RotatedFile(folder, FILE, settings.rotation)
                writer = self._writers[folder] = LineWriter(file, "audit", dropped_line)
            writer.put(line)
            writer.hand_over()  # commands are rare, and one of them ends the daemon


def audits(node: Any) -> dict[Path, AuditSettings]:
    """The audit folders of the node's graphs, with the settings of the first frontend that has each."""
    found: dict[Path, AuditSettings] = {}
    for runner in node.graphs.running.values():
        for folder, settings in _of_graph(runner):
            found.setdefault(folder, settings)
    return found


def _of_graph(runner: Any) -> Iterator[tuple[Path, AuditSettings]]:
    for spec in runner.graph.services.values():
        if spec.component_kind != FRONTEND:
            continue
        environ = {**runner.origin.environ, **spec.envs}
        with contextlib.suppress(UserError, msgspec.ValidationError):  # the frontend itself refuses them
            values = given(spec.config, from_environment(environ))
            own = {key: value for key, value in values.items() if key in _FIELDS and value is not None}
            settings = msgspec.convert(own, AuditSettings, strict=False)
            if settings.on:
                yield Path(runner.origin.folder, settings.folder(environ)).absolute(), settings


async def audit(context: "CommandContext", arguments: AuditArguments) -> Audited:
    """Where the files are, and their last entries. Raises UserError."""
    folders = list(audits(context.node))
    wanted, files = wanted_of(arguments, datetime.now(UTC)), Files(folders)
    entries = await asyncio.to_thread(_last, files, wanted, arguments.lines) if arguments.lines else []
    return Audited(list(map(str, folders)), entries, files.unreadable)


def _last(files: Files, wanted: Wanted, lines: int) -> list[Entry]:
    entries = deque(files.entries(wanted), maxlen=lines)
    return [{name: one for name, one in entry.items() if name not in BODIES} for entry in entries]


HANDLERS = (CommandHandler(AUDIT, audit),)
