"""Writes the records of one HTTP server to its file."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from dynamod.http.context import STATUS_ROUTES
from dynamod.http.records import RecordReader
from dynamod.ingress.own_folder import own_folder
from dynamod.observe.line_writer import LineWriter
from dynamod.observe.metrics import Definition
from dynamod.observe.records import RequestRecord
from dynamod.observe.rotated import RotatedFile

from .lines import dropped_line, request_line
from .settings import SETTING, AuditSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PAUSE_S = 0.03
"""Seconds for which lines are gathered, after the 20 ms of `http.records`."""
FLUSH_S = 2.0
"""Seconds that the last lines get at the end of the server."""
LARGE = 16 * 1024
"""Bytes of bodies from which a thread makes the line."""

METRIC = Definition("counter", "audit_lines", "Lines of the audit log; dropped ones are in no file.", ("outcome",))


class AuditReader(RecordReader):
    """Writes a line for each request. `process`: names the file. Raises UserError when the folder cannot be used."""

    def __init__(self, settings: AuditSettings, process: str) -> None:
        folder = own_folder(str(settings.folder()), SETTING)
        file = RotatedFile(folder, process or "frontend", settings.rotation)
        self.body_bytes = int(settings.audit_body_kb * 1024) if settings.audit_bodies else 0
        self.writer = LineWriter(file, "audit", dropped_line, pause=PAUSE_S)
        self._quiet = frozenset() if settings.audit_status_routes else frozenset(STATUS_ROUTES)
        self._redact = frozenset(name.lower() for name in settings.audit_redact)
        self._made: set[asyncio.Future[bytes]] = set()  # lines that threads make

    def take(self, record: RequestRecord) -> None:
        """Write the line of a record."""
        if record.path in self._quiet and record.status < 400:
            return
        size = len(record.request_body or b"") + len(record.response_body or b"")
        if size < LARGE:
            self.writer.put(request_line(record, self._redact))
            return
        make = partial(request_line, record, self._redact)
        future = asyncio.get_running_loop().run_in_executor(None, make)
        self._made.add(future)
        future.add_done_callback(self._is_made)

    def _is_made(self, future: "asyncio.Future[bytes]") -> None:
        self._made.discard(future)
        if not future.cancelled():
            self.writer.put(future.result())

    async def close(self) -> None:
        """Write all lines that were taken."""
        if self._made:
            await asyncio.wait(self._made, timeout=FLUSH_S)
        await self.writer.close(FLUSH_S)

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """The metric of the HTTP server, whose name begins with `prefix`."""
        family = METRIC.family(prefix)
        for outcome, count in (("written", self.writer.written), ("dropped", self.writer.dropped)):
            family.add_metric([outcome], count)
        return [family]
