"""The worker's side of a hand-off between engines that move KV blocks on their own (`capabilities.MovesBlocks`).

As in `handoff`, the stream of a `Prefill` request is the lease: a reader that cancels it, or dies, releases the blocks.
What has been read, and what has failed, the engine knows and counts.
"""

import logging
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from dynamod.engine.base import Engine, Spawn
from dynamod.engine.own_transfer import OwnTransfer
from dynamod.message.errors import BadRequest, DynamodError, RequestError
from dynamod.message.worker import HANDOFF_FAILED, Generate, Handoff
from dynamod.transport.base import Reply

from .handoff import HandoffStatistics
from .transfer.sessions import SessionStatistics

log = logging.getLogger("dynamod.engine")


class OwnTransferEndpoint:
    """One for each worker, instead of a `HandoffEndpoint`."""

    def __init__(self, engine: Engine[Any], transfer: OwnTransfer, spawn: Spawn) -> None:
        self._engine, self._spawn, self._transfer = engine, spawn, transfer
        self._computes = False
        self._open = 0  # prompts that are computed here for others
        self._endings: Counter[str] = Counter()

    async def listen(self, _host: str, _folder: Path | None, _lease: float | None) -> None:
        """Compute prompts for others from now on. Where that is read the engine itself says."""
        self._computes = True

    def refuse(self) -> None:
        """Compute no more prompts for others."""
        self._computes = False

    def close(self) -> None:
        """Nothing to do: the engine ends, and its prompts with it."""

    def prefill(self, request: Generate, reply: Reply) -> None:
        """Compute a prompt for another worker. Raises RequestError."""
        if not self._computes:
            raise BadRequest("this worker computes no prompts for others: its disaggregation mode is not prefill")
        task = self._spawn(self._prefill(request, reply), f"prompt of {request.request_id}")
        reply.on_cancel(task.cancel)

    async def _prefill(self, request: Generate, reply: Reply) -> None:
        session, transfer, ending = secrets.token_urlsafe(16), self._transfer, "failed"

        def ready(params: dict[str, Any]) -> None:
            if transfer.shape == "pull":
                self._engine.prefill_completed(reply)
            reply.items(
                (msgspec.msgpack.encode(Handoff(session, transfer.layout, params=params, shape=transfer.shape)),)
            )

        self._open += 1
        try:
            await transfer.prefill(request, ready)
            ending = "read"
            reply.items((), "stop")
        except RequestError as error:
            reply.raised(error)
        except DynamodError:  # the engine has ended
            raise
        except Exception as error:
            log.warning("request %s: its prompt could not be computed", request.request_id, exc_info=error)
            reply.failed("EngineFailed", f"{self._engine.name}: {type(error).__name__}: {error}", retry=True)
        finally:
            self._open -= 1
            self._endings["released" if reply.cancelled else ending] += 1

    def adopt(self, request: Generate, reply: Reply) -> None:
        """Serve a request whose prompt another worker computes. Raises RequestError."""
        layout = request.handoff.layout if request.handoff is not None else ""
        if layout != self._transfer.layout:
            self._transfer.failed["layout"] += 1
            why = "the blocks of the two workers are not alike: their engine, its version, model, types or sizes differ"
            log.warning("request %s: %s", request.request_id, why)
            if self._engine.card().capabilities.needs_prefill:
                reply.failed("EngineFailed", f"{self._engine.name}: {why}", retry=True, code=HANDOFF_FAILED)
                return
            request = msgspec.structs.replace(request, handoff=None)
        self._engine.submit(request, reply)

    def statistics(self) -> HandoffStatistics:
        """A snapshot. How many blocks have come the engine does not say; so what computing them takes is not known."""
        transfer, ended = self._transfer, self._endings
        sessions = SessionStatistics(
            open=self._open,
            held_bytes=0,
            opened=self._open + ended.total(),
            read=ended["read"],
            expired=transfer.expired,
            released=ended["released"],
            failed=ended["failed"],
            sent_blocks=0,
            sent_bytes=0,
        )
        return HandoffStatistics(
            transfers=transfer.transfers,
            blocks=0,
            tokens=0,
            bytes=transfer.bytes,
            milliseconds=round(transfer.seconds * 1000),
            saved_milliseconds=0,
            failed=transfer.failed.total(),
            failures=dict(transfer.failed),
            sessions=sessions if self._computes else None,
        )
