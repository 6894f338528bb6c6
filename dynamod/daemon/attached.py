"""A user's Python file that has joined the node: a graph of its own among the others, which only its file can start."""

import asyncio
import re
import time
from collections.abc import Collection

from dynamod.message.errors import UserError
from dynamod.message.rows import Row

from .exits import EXIT, ExitWatch, crash, memory_kills
from .link import Connection
from .process import ProcessRecord
from .rows import of_process

GRAPH = "python"
"""Graph of the first Python process of a node; the next are python-2, python-3, ..."""
STOP = 45.0
"""Seconds that `dynamo stop` waits for the process to end."""


class AttachedGraph:
    """Rows for `ps`, and `dynamo stop`; everything else is refused. Same reading side as runner.GraphRunner."""

    def __init__(self, connection: Connection, taken: Collection[str]) -> None:
        assert connection.hello is not None
        graph, _, process = connection.hello.process.rpartition("/")
        self.script = process.removesuffix(".0")
        self.name = unused(graph if re.fullmatch(rf"{GRAPH}(-\d+)?", graph) else GRAPH, taken)
        self.process = f"{self.name}/{self.script}.0"
        connection.name = self.process
        self.session = f"python {self.script} pid {connection.hello.pid}"
        self._connection = connection
        self._record = ProcessRecord(self.process, connection.hello.pid, connection)
        self._gone = asyncio.Event()
        self._exit, self._memory_kills = ExitWatch(connection.pid), memory_kills()
        connection.owner.cause = self._cause
        connection.on_close(self._ended)

    def _ended(self) -> None:
        self._record.ended = True
        self._gone.set()

    async def _cause(self, left: bool) -> str:
        """Why the process crashed; empty when it was ended on purpose. One that has left the registry was."""
        code = 0 if left else await self._exit.code(EXIT)
        self._exit.close()
        if code is None:
            return "its process ended without a word"
        return crash(code, left=left, out_of_memory=memory_kills() > self._memory_kills)

    def rows(self) -> list[Row]:
        """One row per component."""
        now, connection = time.monotonic(), self._connection
        facts = self._record.facts()
        return [
            of_process(
                Row(
                    graph=self.name,
                    component=component,
                    process=self.process,
                    replica=0,
                    state="Silent" if connection.why else state,
                    pid=connection.pid,
                    uptime=now - connection.reported.since[component],
                    last_error=connection.why,
                    session=self.session,
                    detail=connection.reported.details.get(component, "") if state == "Starting" else "",
                ),
                facts,
            )
            for component, state in connection.reported.states.items()
        ]

    def has(self, component: str) -> bool:
        """Whether a component (or the process) of that name is here."""
        name = component.removeprefix(f"{self.name}/")
        known = {self.process.rpartition("/")[2], *self.components()}
        return name in known | {f"{one}.0" for one in self.components()}

    def components(self) -> list[str]:
        """Names of all components."""
        return list(self._connection.reported.states)

    def processes(self) -> list[ProcessRecord]:
        """The process: it can be asked as those can that the node starts."""
        return [] if self._record.ended else [self._record]

    async def stop(self, _grace: float | None = None) -> None:
        """Ask the file to shut down, and wait for it; its own grace counts. Raises UserError when it does not end."""
        if self._gone.is_set():
            return
        try:
            async with asyncio.timeout(STOP):
                await self._connection.channel.ask("stop", timeout=STOP)
                await self._gone.wait()
        except TimeoutError:
            raise UserError(f"{self.process} does not end", f"end process {self._connection.pid} itself") from None

    def refusal(self) -> UserError:
        """Why it cannot be restarted, scaled or changed: the daemon does not know how the file was started."""
        return UserError(
            f"{self.name} is a Python process that the node did not start",
            f"dynamo stop {self.name}, and start its file as often as you want it",
        )


def unused(name: str, taken: Collection[str]) -> str:
    """`name`, else `name-2`, `name-3`, ..."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
