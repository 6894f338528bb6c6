"""The mocker moves the blocks of prompts on its own, as real engines do: over connections that no worker sees.

The engine that answers connects, and names the prompt. When that has been computed it gets the number of blocks, and of
each the sequence hash, the size and the bytes.
"""

import asyncio
import logging
import secrets
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import HANDOFF_FAILED, Generate, TransferShape
from dynamod.transport.base import Reply

from ..batching.handoff import Held
from ..own_transfer import OwnTransfer, Ready

if TYPE_CHECKING:
    from .engine import Mocker

log = logging.getLogger("dynamod.engine")

LEASE = 30.0
"""Seconds that the blocks of a prompt wait for their reader."""
STALL = 5.0
"""Seconds that a reader waits for blocks that have been computed."""
READ = b"read"
"""What a reader says when it has all."""
_COUNT, _BLOCK = struct.Struct("<I"), struct.Struct("<QI")


class MockerTransfer(OwnTransfer):
    """With a rendezvous what does not come is not computed here: the request fails with `HANDOFF_FAILED`."""

    lease = LEASE

    def __init__(self, engine: "Mocker", shape: TransferShape) -> None:
        super().__init__(f"{engine.layout()}/{shape}")
        self.shape = shape
        self.needed = shape == "rendezvous"
        self.prompts: dict[str, Prompt] = {}  # that are computed here, by their secret names
        self._engine = engine
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> None:
        """Wait for readers."""
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(lambda: _Source(self.prompts), host, 0)
        self._address: dict[str, Any] = {"host": host, "port": server.sockets[0].getsockname()[1]}

    def close(self) -> None:
        """Drop all prompts and readers."""
        if self._server is not None:
            self._server.close()
        for prompt in self.prompts.values():
            prompt.drop()

    async def prefill(self, request: Generate, ready: Ready) -> None:
        """Compute a prompt, and wait for its reader."""
        name = secrets.token_urlsafe(16)
        params = {**self._address, "prompt": name}
        self.prompts[name] = prompt = Prompt()
        if self.shape == "rendezvous":
            ready(params)
        cancel = self._engine.export(request, prompt.put, prompt.done)
        try:
            await prompt.computed.wait()
            if self.shape == "pull":
                ready(params)
            async with asyncio.timeout(self.lease):
                await prompt.read.wait()
        except TimeoutError:
            self.expired += 1
            raise EngineFailed("no worker has read the blocks of the prompt in time") from None
        finally:
            cancel()
            prompt.drop()
            del self.prompts[name]

    def answer(self, request: Generate, reply: Reply) -> None:
        """Serve a request with the blocks of another engine. Raises BadRequest."""
        if request.handoff is None:
            self._fail(reply, "it computes no prompts")
            return
        held = self._engine.adopt(request, reply)
        if held is not None:
            work = self._fetch(held, request.handoff.params, request, reply)
            reply.on_cancel(self._engine.spawn(work, f"blocks of {request.request_id}").cancel)

    async def _fetch(self, held: Held, params: Mapping[str, Any], request: Generate, reply: Reply) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(STALL if self.shape == "pull" else None):
                self.bytes += await self.read(held, params)
            self.transfers += 1
        except Exception as error:
            kind = _kind(error)
            self.failed[kind] += 1
            log.warning("request %s: the blocks of its prompt have not come (%s)", request.request_id, kind)
            if self.needed:
                held.cancel()
                self._fail(reply, f"the blocks of its prompt have not come ({kind})")
        finally:
            self.seconds += now() - began
        held.go()

    async def read(self, held: Held, params: Mapping[str, Any]) -> int:
        """Import all blocks that are not here; returns their bytes. Raises OSError, EOFError, KeyError, ValueError."""
        return await _read(held, params)

    def _fail(self, reply: Reply, why: str) -> None:
        reply.failed("EngineFailed", f"{self._engine.name}: {why}", retry=True, code=HANDOFF_FAILED)


class Prompt:
    """A prompt that is computed for another engine, and its reader."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, bytes]] = []
        self.computed, self.read = asyncio.Event(), asyncio.Event()
        self._reader: asyncio.Transport | None = None

    def put(self, name: int, data: bytes) -> None:
        """The next block."""
        self.blocks.append((name, data))

    def done(self, _error: Exception | None) -> None:
        """What has not been put the reader computes."""
        self.computed.set()
        self._send()

    def attach(self, reader: asyncio.Transport) -> None:
        """Send the prompt to this reader. A reader that has asked before gets no more: it has died."""
        self._reader = reader
        self._send()

    def drop(self) -> None:
        """Its reader gets no more."""
        if self._reader is not None:
            self._reader.close()

    def _send(self) -> None:
        if self._reader is not None and self.computed.is_set():
            blocks = [_BLOCK.pack(name, len(data)) + data for name, data in self.blocks]
            self._reader.write(b"".join([_COUNT.pack(len(blocks)), *blocks]))


class _Source(asyncio.Protocol):
    """A connection of a reader: it sends the name of a prompt, and READ at the end, each as a line."""

    def __init__(self, prompts: Mapping[str, Prompt]) -> None:
        self._prompts, self._said = prompts, b""
        self._prompt: Prompt | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A reader has connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        """Lines, or parts of them."""
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            found = self._prompts.get(line.decode(errors="replace"))
            if line == READ and self._prompt is not None:
                self._prompt.read.set()
            elif found is not None and self._prompt is None:
                self._prompt = found
                found.attach(self._transport)
            else:
                self._transport.close()


async def _read(held: Held, params: Mapping[str, Any]) -> int:
    reader, writer = await asyncio.open_connection(params["host"], params["port"])
    size = 0
    try:
        writer.write(f"{params['prompt']}\n".encode())
        [count] = _COUNT.unpack(await reader.readexactly(_COUNT.size))
        for index in range(count):
            name, length = _BLOCK.unpack(await reader.readexactly(_BLOCK.size))
            data = await reader.readexactly(length)
            if index >= held.first:
                size += length
                if not held.put(name, data):
                    raise ValueError("the block cannot be taken")
        writer.write(READ + b"\n")
        await writer.drain()
    finally:
        writer.close()
    return size


def _kind(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "stalled"
    if isinstance(error, OSError):
        return "unreachable"
    return "short" if isinstance(error, EOFError) else "refused"
