"""Blocks of prompts between simulated workers: real sessions, read over ways that are slow, cut, or lie."""

import asyncio
import random as random_module
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dynamod.engine.base import Engine, Spawn
from dynamod.engine.batching.handoff import Held
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.own_transfer import MockerTransfer, Prompt
from dynamod.message.worker import Generate, Handoff, TransferShape
from dynamod.transfer.base import Block, Kind, TransferError
from dynamod.transfer.sessions import Session, Sessions
from dynamod.transport.base import Reply
from dynamod.worker.handoff import HandoffEndpoint

from .wire import FAR, NEAR, Process

STALL = 5.0
"""Seconds of silence after which a reader gives up, as `transfer.reader` does."""

LOOK = 0.02
"""Seconds between looks at a source that has nothing to send."""

LIES: tuple[Kind, ...] = ("damaged", "short", "stalled", "gone")
SWAPPED = "swapped"
"""What a broken transfer does, beside LIES: the bytes of another block come under the right name."""


class Transfers:
    """All of a cluster. `direct(a, b)`: two nodes reach each other. `chance`: of a transfer to be broken."""

    def __init__(self, random: random_module.Random, chance: float, direct: Callable[[int, int], bool]) -> None:
        self.sources: dict[str, tuple[Process, Sessions]] = {}
        self.engines: dict[str, tuple[Process, MockerTransfer]] = {}
        self.blocks = self.broken = 0
        self._random, self._chance, self._direct = random, chance, direct

    async def read(
        self, reader: Process, addresses: Mapping[str, str], session: str, layout: str, first: int
    ) -> AsyncGenerator[Block, None]:
        """As `transfer.reader.read`, for a worker in the process `reader`."""
        process, sessions = self.sources.get(addresses["simulated"], (None, None))
        lie = self._random.choice((*LIES, SWAPPED)) if self._random.random() < self._chance else ""
        place = first + self._random.randrange(4)  # of the block that it happens to
        await asyncio.sleep((NEAR if process is None or process.node == reader.node else FAR) * 4)
        if process is None or sessions is None or not self._reaches(process, reader):
            raise TransferError("unreachable", "nobody listens there")
        follower = _Follower()
        found = sessions.attach(session, layout, follower, first)
        try:
            while True:
                await self._more(found, first, follower, process, reader)
                if lie and first >= place:
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

    async def fetch(self, reader: Process, held: Held, params: Mapping[str, Any]) -> int:
        """As `MockerTransfer.read`, for an engine in the process `reader`."""
        process, source = self.engines.get(params["simulated"], (None, None))
        lie = self._random.choice(("short", "stalled", SWAPPED)) if self._random.random() < self._chance else ""
        place, size = self._random.randrange(4), 0  # of the block that it happens to
        await asyncio.sleep((NEAR if process is None or process.node == reader.node else FAR) * 4)
        if process is None or source is None or not self._reaches(process, reader):
            raise ConnectionRefusedError
        prompt = await self._computed(process, source, params["prompt"], reader)
        for index, (name, data) in enumerate(prompt.blocks):
            if lie and index >= place:
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
        return self._reaches(process, reader) and not process.frozen

    async def _more(
        self, session: Session, first: int, follower: "_Follower", process: Process, reader: Process
    ) -> None:
        """Wait until the block `first` is there, or all have been."""
        silent = 0.0
        while True:
            if follower.ended:
                raise TransferError(follower.kind, follower.why)
            if not process.alive:
                raise TransferError("short", "the source is gone")
            heard = self._heard(process, reader)
            if heard and (first < session.count or session.finished):
                return
            silent = 0.0 if heard else silent + LOOK
            if silent >= STALL:
                raise TransferError("stalled", f"nothing has come for {STALL:g} s")
            await asyncio.sleep(LOOK)

    def _reaches(self, process: Process, reader: Process) -> bool:
        return process.alive and (process.node == reader.node or self._direct(process.node, reader.node))


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
        super().__init__(engine, spawn, partial(transfers.read, process))
        self._process, self._ways, self._computes = process, transfers, computes

    async def _read(self, held: Held, request: Generate, handoff: Handoff, reply: Reply) -> None:
        await super()._read(held, request, handoff, reply)
        self._computes(request, reply)

    async def _serve(self, host: str, folder: Path | None, lease: float) -> None:
        """Be found by readers."""
        now = asyncio.get_running_loop().time
        self.sessions = Sessions(now, self._spawn, self._engine.layout(), lease=lease)
        self._addresses = {"simulated": self._process.name}
        self._ways.sources[self._process.name] = self._process, self.sessions


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
        self._process, self._ways, self._computes = process, transfers, computes

    async def listen(self, host: str) -> None:
        """Be found by readers."""
        self._address = {"simulated": self._process.name}
        self._ways.engines[self._process.name] = self._process, self

    async def read(self, held: Held, params: Mapping[str, Any]) -> int:
        """Over a way that may be slow, cut, or lie."""
        return await self._ways.fetch(self._process, held, params)

    async def _fetch(self, held: Held, params: Mapping[str, Any], request: Generate, reply: Reply) -> None:
        await super()._fetch(held, params, request, reply)
        self._computes(request, reply)
