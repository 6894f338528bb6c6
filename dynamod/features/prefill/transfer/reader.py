"""The reading side: the blocks of a session, over the best backend that both sides have."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

import msgspec

from dynamod.transport.signing import BLOCKS, Signing
from dynamod.transport.tls import CA, CERT, PEER_TLS, PeerTls

from .base import Backend, Block, TransferError
from .frames import VERSION, Hello
from .names import backends
from .reading import ReaderEnd

CONNECT_TIMEOUT = 2.0
"""Seconds for a connection by one backend."""


async def read(
    addresses: Mapping[str, str],
    session: str,
    layout: str,
    first: int,
    *,
    stall: float = 5.0,
    signing: Signing | None = None,
    tls: PeerTls | None = None,
) -> AsyncGenerator[Block, None]:
    """The blocks of a session from index `first` on, in order, until the source has sent all of its.

    `addresses`: of the source, by backend. A backend that cannot be reached is followed by the next one. A source that
    is silent for `stall` seconds while a block is awaited is an error; it shows each second that it waits for the
    engine itself. Raises TransferError; all blocks before the fault have been given, and `first` continues after them.
    A caller that stops early closes the generator (`aclose`), which ends the connection.
    `signing`: signs each connection. `tls`: nothing is read from other nodes in the clear, unless it accepts that.
    """
    end = await _connected(addresses, Hello(VERSION, session, layout, first), stall, signing, tls)
    try:
        while (block := await end.next(stall)) is not None:
            yield block
    finally:
        await end.leave()


async def _connected(
    addresses: Mapping[str, str], hello: Hello, stall: float, signing: Signing | None, tls: PeerTls | None
) -> ReaderEnd:
    problems = []
    for name, backend in backends(tls):
        if name not in addresses:
            continue
        try:
            return await _accepted(backend, addresses[name], _signed(hello, signing), stall)
        except TransferError as error:
            if error.kind != "unreachable":
                raise
            # no source tells a reader that it refuses a certificate
            hint = f"; perhaps the certificate here is refused: check {CERT} here and {CA} there"
            hint = hint if name == "tls" else ""
            problems.append(f"{name}: {error}{hint}")
        except (OSError, ValueError) as error:  # a TimeoutError has no words
            problems.append(f"{name}: {error or 'timed out'}")
    if tls is None and "tls" in addresses:
        problems.append(f"the source wants TLS: set {', '.join(PEER_TLS[:3])} for the daemon here")
    elif tls is not None and not tls.accept and "tls" not in addresses:
        problems.append(f"the source has no TLS: set {', '.join(PEER_TLS[:3])} for its daemon")
    raise TransferError("unreachable", "; ".join(problems) or "the source has no address that is known here")


def _signed(hello: Hello, signing: Signing | None) -> Hello:
    """Each connection has a signature of its own: a source takes each once."""
    signer = signing.signer if signing is not None else None
    return hello if signer is None else msgspec.structs.replace(hello, signature=signer.sign(BLOCKS, *hello.content()))


async def _accepted(backend: Backend, address: str, hello: Hello, stall: float) -> ReaderEnd:
    async with asyncio.timeout(CONNECT_TIMEOUT):
        end = await backend.connect(address, lambda kind: kind(hello))
    try:
        await end.accepted(stall)
    except BaseException:
        await end.leave()
        raise
    return end
