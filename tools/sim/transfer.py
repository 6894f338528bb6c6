"""Blocks of prompts between simulated workers: real sessions, read over ways that are slow, cut, or lie.

What must hold of them: a session that nobody reads or fills ends with its lease, with all that it holds, and no block
comes to a worker whose blocks have another layout.
"""

import asyncio
import random as random_module
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dynamod.engine.base import Engine, Spawn
from dynamod.engine.batching.handoff import Held
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.own_transfer import MockerTransfer, Prompt
from dynamod.features.prefill.handoff import LEASE, HandoffEndpoint
from dynamod.features.prefill.transfer.base import Block, Kind, TransferError
from dynamod.features.prefill.transfer.sessions import TICK, Follower, Session, Sessions
from dynamod.message.worker import Generate, Handoff, TransferShape
from dynamod.transport.base import Reply

from .events import Log
from .wire import FAR, NEAR, Process

STALL = 5.0
"""Seconds of silence after which a reader gives up, as `transfer.reader` does."""

LATENESS = TICK * 2
"""Seconds by which a session may outlive its lease."""

LOOK = 0.02
"""Seconds between looks at a source that has nothing to send."""

IDLE = 1.0
"""Seconds between signs of life of a reader, as `transfer.server.BEAT`."""

LATE = 1.25
"""Leases of a prompt for which a reader is held up, as long as that is no stall."""

LIES: tuple[Kind, ...] = ("damaged", "short", "stalled", "gone")
SWAPPED = "swapped"
HELD = "held"
LAYOUT = "layout"
"""What a broken transfer does, beside LIES: the bytes of another block come under the right name; the reader is held up
on its way; the source has been started with another layout meanwhile."""


class Transfers:
    """All of a cluster. `direct(a, b)`: two nodes reach each other. `chance`: of a transfer to be broken. `lease`:
    seconds for which prompts wait for their readers.
    """

    def __init__(
        self,
        log: Log,
        random: random_module.Random,
        direct: Callable[[int, int], bool],
        chance: float = 0.0,
        lease: float = LEASE,
    ) -> None:
        self.log, self.lease = log, lease
        self.sources: dict[str, tuple[Process, SimulatedSessions]] = {}
        self.engines: dict[str, tuple[Process, MockerTransfer]] = {}
        self.blocks = self.broken = 0
        self._random, self._chance, self._direct = random, chance, direct

    async def read(
        self,
        reader: Process,
        own: Callable[[], str],
        addresses: Mapping[str, str],
        session: str,
        layout: str,
        first: int,
    ) -> AsyncGenerator[Block, None]:
        """As `transfer.reader.read`, for a worker in the process `reader` whose blocks have the layout `own()`."""
        if layout != own():
            self.log.violate("layouts agree", f"{reader.name} reads blocks of {layout}, and has {own()}")
        process, sessions = self.sources.get(addresses["simulated"], (None, None))
        lie = self._lie((*LIES, SWAPPED, LAYOUT))
        place = first + self._random.randrange(4)  # of the block that it happens to
        await asyncio.sleep((NEAR if process is None or process.node == reader.node else FAR) * 4)
        if lie == HELD:
            await self._held_up(STALL)
        if process is None or sessions is None or not self._reaches(process, reader):
            raise TransferError("unreachable", "nobody listens there")
        follower = _Follower()
        found = sessions.attach(session, f"{layout}, as it was" if lie == LAYOUT else layout, follower, first)
        if lie == LAYOUT:
            self.log.violate("layouts agree", f"{process.name} gives blocks to {reader.name}, which has another layout")
        try:
            while True:
                await self._more(found, first, follower, process, reader)
                if lie in (*LIES, SWAPPED) and first >= place:
                    self.broken += 1
                    await asyncio.sleep(STALL if lie == "stalled" else 0.0)
                    if lie in LIES:
                        raise TransferError(lie, f"it is {lie}")
                if first >= found.count:
                    follower.ended = True
                    found.end("read")
                    return
                block = found.block(first)
                found.sent(block)
                found.touch()
                self.blocks += 1
                data = block.data[::-1] if lie == SWAPPED and first >= place else block.data
                first += 1
                yield Block(block.name, data)
                found.acknowledge(first)
        finally:
            if not follower.ended:
                found.detach()

    def _lie(self, others: Sequence[str]) -> str:
        """What is to happen to a transfer: nothing, that its reader is held up (mostly, where leases are short), or one
        of the others.
        """
        if self._random.random() >= self._chance:
            return ""
        return HELD if self._random.random() < (0.5 if self.lease < STALL else 0.1) else self._random.choice(others)

    async def _held_up(self, most: float) -> None:
        """A reader comes when the lease of its prompt is over. Raises TransferError where it has given up by then."""
        self.broken += 1
        await asyncio.sleep(min(most, self.lease * LATE))
        if self.lease * LATE >= most:
            raise TransferError("stalled", "the way to the source is too long")

    async def fetch(self, reader: Process, layout: str, held: Held, params: Mapping[str, Any]) -> int:
        """As `MockerTransfer.read`, for an engine in the process `reader` whose blocks have this layout."""
        process, source = self.engines.get(params["simulated"], (None, None))
        lie = self._lie(("short", "stalled", SWAPPED))
        place, size = self._random.randrange(4), 0  # of the block that it happens to
        await asyncio.sleep((NEAR if process is None or process.node == reader.node else FAR) * 4)
        if process is None or source is None or not self._reaches(process, reader):
            raise ConnectionRefusedError
        if source.layout != layout:
            self.log.violate("layouts agree", f"{reader.name} reads blocks of {source.layout}, and has {layout}")
        prompt = await self._computed(process, source, params["prompt"], reader)
        if lie == HELD:
            await self._held_up(2 * STALL)
            if process.alive and source.prompts.get(params["prompt"]) is prompt:
                self.log.violate("sessions expire", f"{process.name} has a prompt which nobody reads")
            raise EOFError
        for index, (name, data) in enumerate(prompt.blocks):
            if lie in ("short", "stalled", SWAPPED) and index >= place:
                self.broken += 1
                await asyncio.sleep(2 * STALL if lie == "stalled" else 0.0)
                if lie == "short":
                    raise EOFError
            if index >= held.first:
                wrong = lie == SWAPPED and index >= place
                if not held.put(name, prompt.blocks[0][1][::-1] if wrong else data):
                    raise ValueError("the block cannot be taken")
                self.blocks += 1
                size += len(data)
        prompt.read.set()
        return size

    async def _computed(self, process: Process, source: MockerTransfer, name: str, reader: Process) -> "Prompt":
        """A prompt, once it has been computed, and its engine can be heard."""
        while True:
            prompt = source.prompts.get(name)
            if not process.alive or (prompt is None and self._reaches(process, reader)):
                raise EOFError
            if prompt is not None and prompt.computed.is_set() and self._heard(process, reader):
                return prompt
            await asyncio.sleep(LOOK)

    def _heard(self, process: Process, reader: Process) -> bool:
        return self._reaches(process, reader) and not (process.frozen or reader.frozen)

    async def _more(
        self, session: Session, first: int, follower: "_Follower", process: Process, reader: Process
    ) -> None:
        """Wait until the block `first` is there, or all have been. Both sides show that they live."""
        silent, idle = 0.0, 0.0
        while True:
            if follower.ended:
                raise TransferError(follower.kind, follower.why)
            if not process.alive:
                raise TransferError("short", "the source is gone")
            heard = self._heard(process, reader)
            if heard and (first < session.count or session.finished):
                return
            silent, idle = (0.0, idle + LOOK) if heard else (silent + LOOK, idle)
            if silent >= STALL:
                raise TransferError("stalled", f"nothing has come for {STALL:g} s")
            if idle >= IDLE:
                idle = 0.0
                session.touch()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        """What must hold of the sessions of living workers."""
        for process, sessions in self.sources.values():
            if process.alive:
                sessions.look()

    def _reaches(self, process: Process, reader: Process) -> bool:
        return process.alive and (process.node == reader.node or self._direct(process.node, reader.node))


class SimulatedSessions(Sessions):
    """The sessions of a worker, and what must hold of them at any moment."""

    def __init__(self, log: Log, process: Process, spawn: Spawn, layout: str, lease: float) -> None:
        super().__init__(asyncio.get_running_loop().time, spawn, layout, lease=lease)
        self._log, self._process = log, process
        self._unended: list[Session] = []

    def open(self, on_end: Callable[[str], None] = lambda why: None) -> Session:
        """Begin a session."""
        session = super().open(on_end)
        self._unended.append(session)
        return session

    def attach(self, session: str, layout: str, follower: Follower, first: int = 0) -> Session:
        """Make `follower` the reader of a session."""
        self.look()
        return super().attach(session, layout, follower, first)

    def look(self) -> None:
        """None is there whose lease is over, and only those that are there hold anything."""
        self._unended = [session for session in self._unended if not session.ended]
        late = asyncio.get_running_loop().time() - LATENESS
        for session in self._unended:
            if session.deadline < late:
                over = late + LATENESS - session.deadline
                self._log.violate("sessions expire", f"{self._process.name} has one whose lease ended {over:.2f} s ago")
        held, there = self.statistics().held_bytes, sum(session.held for session in self._unended)
        if held != there:
            self._log.violate("sessions end", f"{self._process.name} holds {held} bytes for sessions of {there}")


class _Follower:
    """A reader, as its session sees it."""

    served = False  # what it has, it says in the same moment

    def __init__(self) -> None:
        self.ended = False
        self.kind: Kind = "failed"
        self.why = ""

    def more(self) -> None:
        """Somebody looks soon."""

    def ask(self) -> None:
        """What it has, it says in the same moment."""

    def over(self, kind: Kind, why: str) -> None:
        """The session has ended."""
        self.ended, self.kind, self.why = True, kind, why


class SimulatedHandoff(HandoffEndpoint):
    """The worker's side, without sockets."""

    def __init__(
        self,
        engine: Engine[Any],
        spawn: Spawn,
        process: Process,
        transfers: Transfers,
        computes: Callable[[Generate, Reply], object],
    ) -> None:
        super().__init__(engine, spawn, partial(transfers.read, process, lambda: self._engine.layout()))
        self._process, self._ways, self._computes = process, transfers, computes

    async def _read(self, held: Held, request: Generate, handoff: Handoff, reply: Reply) -> None:
        await super()._read(held, request, handoff, reply)
        self._computes(request, reply)

    async def _serve(self, host: str, folder: Path | None, lease: float) -> None:
        """Be found by readers."""
        ways, layout = self._ways, self._engine.layout()
        self.sessions = sessions = SimulatedSessions(ways.log, self._process, self._spawn, layout, ways.lease)
        server = SimpleNamespace(addresses={"simulated": self._process.name}, close=lambda: None)
        self._server = cast("Any", server)
        ways.sources[self._process.name] = self._process, sessions


class SimulatedTransfer(MockerTransfer):
    """Blocks that the engines move, without sockets."""

    def __init__(
        self,
        engine: Mocker,
        shape: TransferShape,
        process: Process,
        transfers: Transfers,
        computes: Callable[[Generate, Reply], object],
    ) -> None:
        super().__init__(engine, shape)
        self.lease = transfers.lease
        self._process, self._ways, self._computes = process, transfers, computes

    async def listen(self, host: str) -> None:
        """Be found by readers."""
        self._address = {"simulated": self._process.name}
        self._ways.engines[self._process.name] = self._process, self

    async def read(self, held: Held, params: Mapping[str, Any]) -> int:
        """Over a way that may be slow, cut, or lie."""
        return await self._ways.fetch(self._process, self.layout, held, params)

    async def _fetch(self, held: Held, params: Mapping[str, Any], request: Generate, reply: Reply) -> None:
        await super()._fetch(held, params, request, reply)
        self._computes(request, reply)
