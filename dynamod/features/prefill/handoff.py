"""The worker's side of a hand-off: prompts computed for other workers, and blocks of prompts read from them.

The stream of a `Prefill` request is the session's lease: it stays open until the blocks have been read. A reader
that cancels it, or dies, releases them. A failed transfer is never served: what is missing is computed here, and
counted. Blocks that another worker has stored are read in the same way; nothing is computed for them, so none may
be long in coming.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.engine.base import Engine, Spawn
from dynamod.engine.batching.handoff import Held
from dynamod.engine.capabilities import HandsOffBlocks
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, RequestError
from dynamod.message.worker import Generate, Handoff
from dynamod.transport.base import CONFIRM, Reply
from dynamod.transport.signing import Signing
from dynamod.transport.tls import PeerTls
from dynamod.transport.waiting import comes

from .measured import Measured
from .transfer.base import Block, Kind, TransferError
from .transfer.reader import read as read_blocks
from .transfer.server import BlockServer
from .transfer.sessions import MOST_BYTES, Sessions, SessionStatistics
from .unreachable import UnreachableSources

log = logging.getLogger("dynamod.engine")

SILENT: frozenset[Kind | str] = frozenset(("unreachable", "gone", "short", "stalled"))
"""Failures of a transfer after which the prefill worker may have crashed."""

LEASE = 30.0
"""Seconds that a session lives without a sign of its reader, where the settings say nothing else."""

PATIENCE = 1.0
"""Seconds that a reader waits for a block that another worker has stored; for all, as long as computing them takes."""

FORGET = 60.0
"""Seconds for which a worker remembers what blocks took on their way, or lost, and which workers it could not reach."""

Read = Callable[[Mapping[str, str], str, str, int], AsyncGenerator[Block, None]]
"""Reads the blocks of a session (`transfer.reader.read`): addresses, session, layout, the first index."""


class _Refused(Exception):
    def __str__(self) -> str:
        return "the engine does not take it: it is another block, or there is no room"


class TransferStatistics(msgspec.Struct, frozen=True):
    """Prompts read from other workers: blocks, their tokens and bytes, milliseconds; failed transfers, by their kind.

    `saved_milliseconds`: what computing these blocks here would have taken, as measured; 0 where that is not known.
    Engines that move blocks on their own do not say how many: `blocks`, `tokens` and `saved_milliseconds` are 0 then.
    """

    transfers: Annotated[Total, Meta(description="Prompts whose blocks were read from another worker.")]
    blocks: Annotated[Total, Meta(description="Blocks that were read; 0 where the engine moves its blocks.")]
    tokens: Annotated[Total, Meta(description="Tokens of these blocks; 0 where the engine moves its blocks.")]
    bytes: Annotated[Total, Meta(description="Bytes of these blocks.")]
    milliseconds: Annotated[Total, Meta(description="Duration of all transfers.")]
    saved_milliseconds: Annotated[
        Total, Meta(description="Measured time of computing these blocks here; 0: not known.")
    ]
    failed: Annotated[Total, Meta(description="Failed transfers.")]
    failures: dict[str, int]


class HandoffStatistics(TransferStatistics, frozen=True):
    """Of prompts that others have computed. `peers`: the same of prompts that they had stored, None before the first.

    `sessions`: of the prompts that this worker computes for others, or gives them.
    """

    sessions: SessionStatistics | None
    peers: TransferStatistics | None = None


class _Counts:
    """What is counted of transfers to here."""

    def __init__(self) -> None:
        self.transfers = self.blocks = self.bytes = 0
        self.seconds = self.saved = 0.0
        self.failed: Counter[str] = Counter()

    def totals(self, size: int) -> tuple[int, int, int, int, int, int, int, dict[str, int]]:
        """In the order of TransferStatistics. `size`: tokens of a block."""
        spent, saved, failed = round(self.seconds * 1000), round(self.saved * 1000), self.failed
        return self.transfers, self.blocks, self.blocks * size, self.bytes, spent, saved, failed.total(), dict(failed)


class HandoffEndpoint:
    """One for each worker. Raises BadRequest for an engine that cannot do it.

    `port`: at which other nodes read blocks, 0: a free one. `most_bytes`: of blocks that wait for their readers, None:
    MOST_BYTES. `signing`, `tls`: of connections to other workers, and from them.
    """

    def __init__(
        self,
        engine: Engine[Any],
        spawn: Spawn,
        read: Read | None = None,
        *,
        port: int = 0,
        most_bytes: int | None = None,
        signing: Signing | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        if not (isinstance(engine, HandsOffBlocks) and engine.exports):
            raise BadRequest(f"engine {engine.name} neither computes prompts for other workers nor takes them")
        self._engine, self._spawn = engine, spawn
        self._between = signing, tls
        self._read_blocks = read or partial(read_blocks, signing=signing, tls=tls)
        self._port, self._most_bytes = port, most_bytes or MOST_BYTES
        self.sessions: Sessions | None = None  # of the prompts that are read here
        self._stored_only = False  # it computes no prompts for others
        self._starts = asyncio.Lock()  # to listen
        self._server: BlockServer | None = None
        self._prompts, self._peers = _Counts(), _Counts()
        self._unreachable = UnreachableSources(FORGET)
        self._peer = Measured(FORGET, lambda mean: setattr(engine, "peer_seconds", mean))  # of a block
        self._move = Measured(FORGET, lambda mean: setattr(engine, "move_seconds", mean))  # of a prompt

    async def listen(self, host: str, folder: Path | None, lease: float | None = None) -> None:
        """Wait for readers of the prompts that this worker computes from now on. `folder`: for sockets, private.

        `lease`: seconds; None: LEASE. Raises OSError where no worker could read.
        """
        async with self._starts:
            if self.sessions is None:
                await self._serve(host, folder, LEASE)
        assert self.sessions is not None
        self.sessions.lease, self._stored_only = lease or LEASE, False

    def refuse(self) -> None:
        """Compute no more prompts for others. They still get what is stored."""
        self._stored_only = True

    async def _serve(self, host: str, folder: Path | None, lease: float) -> None:
        """Let others read sessions. Raises OSError where that cannot be."""
        now = asyncio.get_running_loop().time
        sessions = Sessions(now, self._spawn, self._engine.layout(), lease=lease, most_bytes=self._most_bytes)
        server = BlockServer(sessions, self._spawn, folder, *self._between)
        try:
            await server.start(host, self._port)
        except BaseException:
            server.close()
            raise
        self._server, self.sessions = server, sessions

    def close(self) -> None:
        """Drop all sessions."""
        for measured in (self._peer, self._move):
            measured.close()
        if self._server is not None:
            self._server.close()
        if self.sessions is not None:
            self.sessions.close()

    def prefill(self, request: Generate, reply: Reply) -> None:
        """Compute a prompt for another worker. Raises RequestError."""
        if self.sessions is None or self._stored_only:
            raise BadRequest("this worker computes no prompts for others: its disaggregation mode is not prefill")
        self._open(request, reply, self.sessions, stored=False)

    def export_stored(self, request: Generate, reply: Reply, host: str, folder: Path | None) -> None:
        """Give another worker the first blocks of a prompt, as far as they are here; see `listen`. Raises RequestError.

        The first time this worker begins to listen.
        """
        if self.sessions is not None:
            self._open(request, reply, self.sessions, stored=True)
        else:
            task = self._spawn(self._open_later(request, reply, host, folder), f"blocks for {request.request_id}")
            reply.on_cancel(task.cancel)

    async def _open_later(self, request: Generate, reply: Reply, host: str, folder: Path | None) -> None:
        try:
            async with self._starts:
                if self.sessions is None:
                    self._stored_only = True
                    await self._serve(host, folder, LEASE)
            assert self.sessions is not None
            self._open(request, reply, self.sessions, stored=True)
        except RequestError as error:
            reply.raised(error)
        except OSError as error:
            log.warning("no other worker can read blocks here: %s", error)
            reply.failed("EngineFailed", f"no worker can read blocks here: {error}", retry=True)
        except Exception as error:  # an engine's bug costs the blocks, not the worker
            log.exception("request %s: its blocks could not be given", request.request_id)
            reply.failed("EngineFailed", f"{type(error).__name__}; the worker's log has more under this request's id")

    def _open(self, request: Generate, reply: Reply, sessions: Sessions, *, stored: bool) -> None:
        prompt = _Prompt(reply)

        def ended(why: str) -> None:
            if why == "read" and not stored:
                self._move.add(session.waited)
            prompt.ended(why)

        session = sessions.open(ended)
        reply.on_cancel(session.release)
        cached = None if stored else self._cached(request)
        addresses = self._server.addresses if self._server is not None else {}
        handoff = Handoff(session.id, self._engine.layout(), addresses, stored=stored, cached_tokens=cached)
        reply.items((msgspec.msgpack.encode(handoff),))

        def done(error: Exception | None) -> None:
            self._engine.prefill_completed(reply)
            if error is None:
                session.finish()
            else:
                session.fail(str(error))

        try:
            export = self._engine.export_stored if stored else self._engine.export
            prompt.begun(export(request, session.put, done, session.room))
        except BaseException:
            session.release()
            raise

    def _cached(self, request: Generate) -> int:
        """Tokens of a prompt that are in the cache now: what will be computed is not known before its turn comes."""
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        return length - self._engine.footprint(request)[1]

    def adopt(self, request: Generate, reply: Reply) -> None:
        """Serve a request whose prompt another worker computes. Raises RequestError."""
        held = self._engine.adopt(request, reply)
        if held is not None:
            assert request.handoff is not None
            task = self._spawn(self._read(held, request, request.handoff, reply), f"blocks of {request.request_id}")
            reply.on_cancel(task.cancel)

    async def _read(self, held: Held, request: Generate, handoff: Handoff, reply: Reply) -> None:
        now = asyncio.get_running_loop().time
        began, counts = now(), self._peers if handoff.stored else self._prompts
        first, lost, tried = held.first, False, False
        try:
            if handoff.layout != self._engine.layout():
                raise TransferError("layout", "the blocks of the two workers are not alike")
            self._unreachable.check(handoff.addresses)
            tried = True
            await self._take(held, handoff, counts, self._patience(held, request) if handoff.stored else None)
            counts.transfers += 1
        except (TransferError, _Refused) as error:
            kind = error.kind if isinstance(error, TransferError) else "refused"
            counts.failed[kind] += 1
            lost = tried
            if tried and kind == "unreachable":
                self._unreachable.add(handoff.addresses)
                if not handoff.stored:
                    self._move.add(now() - began)
            text = "request %s: the prompt is computed here from block %d on: %s"
            log.warning(text, request.request_id, held.first, error)
            if kind in SILENT and not handoff.stored:
                await _ask(reply)
        except Exception:  # a bug in the transfer costs the transfer, not the worker
            counts.failed["failed"] += 1
            log.exception("request %s: the blocks of its prompt could not be read", request.request_id)
        finally:
            took = now() - began
            counts.seconds += took
            if handoff.stored and (lost or held.first > first):
                # Time that was lost counts: there is less to gain then.
                self._peer.add(took / max(1, held.first))
            held.go()

    def _patience(self, held: Held, request: Generate) -> float:
        """Seconds for all blocks of a prompt that another worker has stored."""
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        missing = length // self._engine.block_size - held.first
        return max(PATIENCE, missing * self._engine.block_times()[0])

    async def _take(self, held: Held, handoff: Handoff, counts: _Counts, patience: float | None) -> None:
        """Import what comes within `patience`. Raises TransferError and _Refused."""
        now = asyncio.get_running_loop().time
        until = None if patience is None else now() + patience
        blocks = self._read_blocks(handoff.addresses, handoff.session, handoff.layout, held.first)
        async with aclosing(blocks):
            while True:
                try:
                    async with asyncio.timeout(None if until is None else min(PATIENCE, until - now())):
                        block = await anext(blocks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise TransferError(
                        "stalled", f"no block for {PATIENCE:g} s, or too few in {patience:g} s"
                    ) from None
                if not held.put(block.name, block.data):
                    raise _Refused
                counts.blocks += 1
                counts.saved += self._engine.block_times()[0] * held.span / self._engine.block_size
                counts.bytes += len(block.data)

    def statistics(self) -> HandoffStatistics:
        """A snapshot."""
        sessions = self.sessions.statistics() if self.sessions is not None else None
        prompts, peers = (counts.totals(self._engine.block_size) for counts in (self._prompts, self._peers))
        return HandoffStatistics(*prompts, sessions, TransferStatistics(*peers) if any(peers) else None)


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
