"""The worker's side of a hand-off: prompts computed for other workers, and blocks of prompts read from them.

The stream of a `Prefill` request is the session's lease: it stays open until the blocks have been read, and whoever
cancels it, or dies, releases them. A failed transfer is never served: what is missing is computed here, and counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from dynamod.actor import Total
from dynamod.engine.base import Engine, Spawn
from dynamod.engine.batching.engine import BatchingEngine
from dynamod.engine.batching.handoff import Held
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Generate, Handoff
from dynamod.transfer.base import Block, Kind, TransferError
from dynamod.transfer.reader import read
from dynamod.transfer.server import BlockServer
from dynamod.transfer.sessions import Sessions, SessionStatistics
from dynamod.transport.base import CONFIRM, Reply
from dynamod.transport.waiting import comes

log = logging.getLogger("dynamod.engine")

SILENT: frozenset[Kind | str] = frozenset(("unreachable", "gone", "short", "stalled"))
"""Failures of a transfer behind which the prefill worker may have crashed."""

LEASE = 30.0
"""Seconds that a session lives without a sign of its reader, where the settings say nothing else."""


Read = Callable[[Mapping[str, str], str, str, int], AsyncGenerator[Block, None]]
"""Reads the blocks of a session (`transfer.reader.read`): addresses, session, layout, the first index."""


class _Refused(Exception):
    def __str__(self) -> str:
        return "the engine does not take it: it is another block, or there is no room"


class HandoffStatistics(msgspec.Struct, frozen=True):
    """Prompts read from other workers: blocks, bytes and milliseconds; transfers that failed, `failures` by their kind.

    `sessions`: of the prompts that this worker computes for others.
    """

    transfers: Total
    blocks: Total
    bytes: Total
    milliseconds: Total
    failed: Total
    failures: dict[str, int]
    sessions: SessionStatistics | None


class HandoffEndpoint:
    """One for each worker. Raises BadRequest for an engine that cannot do it."""

    def __init__(self, engine: Engine[Any], spawn: Spawn, read: Read = read) -> None:
        if not (isinstance(engine, BatchingEngine) and engine.card().capabilities.handoff):
            raise BadRequest(f"engine {engine.name} neither computes prompts for other workers nor takes them")
        self._engine, self._spawn = engine, spawn
        self._read_blocks = read
        self.sessions: Sessions | None = None  # of the prompts that are computed here
        self._server: BlockServer | None = None
        self._addresses: dict[str, str] = {}
        self._transfers = self._blocks = self._bytes = 0
        self._seconds = 0.0
        self._failed: Counter[str] = Counter()

    async def listen(self, host: str, folder: Path | None, lease: float | None = None) -> None:
        """Wait for readers of the prompts that this worker computes. `folder`: for sockets, private.

        `lease`: seconds; None: LEASE.
        """
        now = asyncio.get_running_loop().time
        self.sessions = Sessions(now, self._spawn, self._engine.layout(), lease=lease or LEASE)
        self._server = BlockServer(self.sessions, self._spawn, folder)
        await self._server.start(host)
        self._addresses = self._server.addresses

    def close(self) -> None:
        """Drop all sessions."""
        if self._server is not None:
            self._server.close()
        if self.sessions is not None:
            self.sessions.close()

    def prefill(self, request: Generate, reply: Reply) -> None:
        """Compute a prompt for another worker. Raises RequestError."""
        if self.sessions is None:
            raise BadRequest("this worker computes no prompts for others: its disaggregation mode is not prefill")
        prompt = _Prompt(reply)
        session = self.sessions.open(prompt.ended)
        reply.on_cancel(session.release)
        handoff = Handoff(session.id, self._engine.layout(), self._addresses)
        reply.items((msgspec.msgpack.encode(handoff),))

        def done(error: Exception | None) -> None:
            self._engine.prefill_completed(reply)
            if error is None:
                session.finish()
            else:
                session.fail(str(error))

        try:
            prompt.begun(self._engine.export(request, session.put, done))
        except BaseException:
            session.release()
            raise

    def adopt(self, request: Generate, reply: Reply) -> None:
        """Serve a request whose prompt another worker computes. Raises RequestError."""
        held = self._engine.adopt(request, reply)
        if held is not None:
            assert request.handoff is not None
            task = self._spawn(self._read(held, request, request.handoff, reply), f"blocks of {request.request_id}")
            reply.on_cancel(task.cancel)

    async def _read(self, held: Held, request: Generate, handoff: Handoff, reply: Reply) -> None:
        now = asyncio.get_running_loop().time
        began, first = now(), held.first
        try:
            if handoff.layout != self._engine.layout():
                raise TransferError("layout", "the blocks of the two workers are not alike")
            blocks = self._read_blocks(handoff.addresses, handoff.session, handoff.layout, first)
            async with aclosing(blocks):
                async for block in blocks:
                    if not held.put(block.name, block.data):
                        raise _Refused
                    self._blocks += 1
                    self._bytes += len(block.data)
            self._transfers += 1
        except (TransferError, _Refused) as error:
            kind = error.kind if isinstance(error, TransferError) else "refused"
            self._failed[kind] += 1
            text = "request %s: the prompt is computed here from block %d on: %s"
            log.warning(text, request.request_id, held.first, error)
            if kind in SILENT:
                await _ask(reply)
        except Exception:  # a bug in the transfer costs the transfer, not the worker
            self._failed["failed"] += 1
            log.exception("request %s: the blocks of its prompt could not be read", request.request_id)
        finally:
            self._seconds += now() - began
            held.go()

    def statistics(self) -> HandoffStatistics:
        """A snapshot."""
        sessions = self.sessions.statistics() if self.sessions is not None else None
        counts = (self._transfers, self._blocks, self._bytes, round(self._seconds * 1000), self._failed.total())
        return HandoffStatistics(*counts, dict(self._failed), sessions)


async def _ask(reply: Reply) -> None:
    """Ask the ingress whether the prompt may be computed here: it may be what has crashed the prefill worker."""
    known = asyncio.Event()
    reply.on_confirm(known.set)
    reply.accepted()
    await comes(known, CONFIRM)


class _Prompt:
    """A prompt that is computed for a session: no longer than that lasts. Its stream ends with the session."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._cancel: Callable[[], object] | None = None
        self._over = False

    def begun(self, cancel: Callable[[], object]) -> None:
        """The engine computes it; `cancel` ends that. The session may have ended in the same call."""
        self._cancel = cancel
        if self._over:
            cancel()

    def ended(self, why: str) -> None:
        """The session has ended."""
        self._over = True
        if self._cancel is not None:
            self._cancel()
        if why == "read":
            self._reply.items((), "stop")
        else:
            self._reply.failed("EngineFailed", f"the blocks of the prompt were not read: {why}", retry=True)
