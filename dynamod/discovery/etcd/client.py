"""The few calls of etcd's v3 protocol that the bridge speaks, over one gRPC channel to one member.

The stubs are those of the `aetcd` package; its own client knows one endpoint without TLS, so the channel is ours.
Every call has a deadline and raises an EtcdError.
"""

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from dynamod.message.errors import UserError
from dynamod.transport.waiting import cancelled

from .errors import CLOSED, Compacted, EtcdAway, TokenInvalid, translate
from .settings import Endpoint, EtcdSettings

CALL = 3.0
"""Seconds that a call may take."""

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # etcd stands inside the cluster
    ("grpc.use_local_subchannel_pool", 1),  # a new session is a new connection, without the last one's backoff
)


Renew = Callable[[Collection[int], float], Awaitable[set[int]]]
"""Gives leases their full time again; returns the leases that are gone. Raises EtcdAway after so many seconds."""


class Item(NamedTuple):
    """What stands under a key: value, lease (0: none) and the revision of its last change."""

    value: bytes
    lease: int
    revision: int


class Change(NamedTuple):
    """One event of a watch; `item` None means deleted."""

    key: str
    item: Item | None
    revision: int


def library() -> tuple[Any, Any]:
    """The modules `grpc` and `aetcd.rpc`. Raises UserError when they are not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes of handshakes alongside our own lines
    try:
        importlib.import_module("grpc.aio")
        return importlib.import_module("grpc"), importlib.import_module("aetcd.rpc")
    except ImportError as error:
        raise UserError(
            f"ETCD_ENDPOINTS is set, but the etcd client cannot be loaded ({error})", "pip install aetcd"
        ) from None


class EtcdClient:
    """One channel. Use `connect` to make one; `lease` ids and revisions are etcd's int64."""

    def __init__(self, settings: EtcdSettings, channel: Any, rpc: Any, failures: tuple[type[Exception], ...]) -> None:
        self._settings, self._rpc, self._failures = settings, rpc, failures
        self._kv = rpc.KVStub(channel)
        self._leases = rpc.LeaseStub(channel)
        self._watches = rpc.WatchStub(channel)
        self._auth = rpc.AuthStub(channel)
        self._token = ""

    @property
    def logged_in(self) -> bool:
        """Whether there is a token, which etcd forgets after some minutes without use."""
        return bool(self._token)

    async def login(self) -> None:
        """Fetch a token when the settings name a user. An etcd without authentication needs none."""
        if not self._settings.username:
            return
        request = self._rpc.AuthenticateRequest(name=self._settings.username, password=self._settings.password)
        try:
            self._token = (await self._auth.Authenticate(request, timeout=CALL)).token
        except self._failures as error:
            if "authentication is not enabled" not in str(getattr(error, "details", str)()):
                raise translate(error) from None

    async def snapshot(self, prefix: str) -> tuple[dict[str, Item], int]:
        """Everything under a prefix, and the revision at which it stood so."""
        request = self._rpc.RangeRequest(key=prefix.encode(), range_end=after(prefix))
        answer = await self._call(self._kv.Range, request)
        return {_text(kv.key): _item(kv) for kv in answer.kvs}, answer.header.revision

    async def ping(self, prefix: str) -> int:
        """Ask the cluster (not this member alone) for its revision."""
        request = self._rpc.RangeRequest(key=prefix.encode(), count_only=True)
        return int((await self._call(self._kv.Range, request)).header.revision)

    async def put(self, items: Iterable[tuple[str, bytes]], lease: int) -> int:
        """Put keys under one lease, all or none; returns the revision. Raises LeaseMissing, TooMuch."""
        puts = [self._rpc.PutRequest(key=key.encode(), value=value, lease=lease) for key, value in items]
        operations = [self._rpc.RequestOp(request_put=put) for put in puts]
        answer = await self._call(self._kv.Txn, self._rpc.TxnRequest(success=operations))
        return int(answer.header.revision)

    async def delete(self, key: str, lease: int, beside: Iterable[str] = ()) -> int | None:
        """Delete a key if it hangs on `lease`; returns the revision of that, None when it does not.

        `beside`: keys that go with it.
        """
        compare = self._rpc.Compare(
            key=key.encode(), target=self._rpc.Compare.LEASE, result=self._rpc.Compare.EQUAL, lease=lease
        )
        deletions = [self._rpc.DeleteRangeRequest(key=one.encode()) for one in (key, *beside)]
        operations = [self._rpc.RequestOp(request_delete_range=one) for one in deletions]
        answer = await self._call(self._kv.Txn, self._rpc.TxnRequest(compare=[compare], success=operations))
        return int(answer.header.revision) if answer.succeeded else None

    async def grant(self, lease: int, ttl: int) -> None:
        """Begin a lease with this id. Raises LeaseTaken."""
        await self._call(self._leases.LeaseGrant, self._rpc.LeaseGrantRequest(ID=lease, TTL=ttl))

    async def revoke(self, lease: int) -> int:
        """End a lease and its keys; returns the revision of that. Raises LeaseMissing."""
        answer = await self._call(self._leases.LeaseRevoke, self._rpc.LeaseRevokeRequest(ID=lease))
        return int(answer.header.revision)

    @asynccontextmanager
    async def renewals(self) -> AsyncIterator[Renew]:
        """Open the stream that keeps leases alive."""
        stream = self._leases.LeaseKeepAlive(metadata=self._metadata(leader=True))

        async def renew(leases: Collection[int], patience: float) -> set[int]:
            gone = set()
            async with _deadline(patience, "no answer to keep-alive"):
                for lease in leases:
                    await stream.write(self._rpc.LeaseKeepAliveRequest(ID=lease))
                for _ in leases:
                    answer = await _read(stream)
                    if answer.TTL <= 0:
                        gone.add(int(answer.ID))
            return gone

        try:
            yield renew
        except self._failures as error:
            raise translate(error) from None
        finally:
            stream.cancel()

    async def watch(self, prefix: str, start: int) -> AsyncGenerator[list[Change], None]:
        """Changes under a prefix from revision `start` on, in their order, forever. Raises Compacted."""
        stream = self._watches.Watch(metadata=self._metadata(leader=True))
        wanted = self._rpc.WatchCreateRequest(key=prefix.encode(), range_end=after(prefix), start_revision=start)
        try:
            async with _deadline(CALL, "no answer to watch"):
                await stream.write(self._rpc.WatchRequest(create_request=wanted))
                answer = await _read(stream)
            while True:
                if answer.compact_revision:
                    raise Compacted(f"revisions below {answer.compact_revision} are not kept")
                if answer.canceled:
                    raise EtcdAway(f"the watch ended: {answer.cancel_reason or 'no reason given'}")
                if answer.events:
                    yield [_change(event) for event in answer.events]
                answer = await _read(stream)
        except self._failures as error:
            raise translate(error) from None
        finally:
            stream.cancel()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await self._once(method, request)
        except TokenInvalid:
            await self.login()
            return await self._once(method, request)

    async def _once(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=CALL, metadata=self._metadata())
        except self._failures as error:
            raise translate(error) from None
        except asyncio.CancelledError:
            if cancelled():
                raise
            raise EtcdAway(CLOSED) from None  # its session has ended

    def _metadata(self, *, leader: bool = False) -> tuple[tuple[str, str], ...]:
        token = (("token", self._token),) if self._token else ()
        return (*token, ("hasleader", "true")) if leader else token  # a member without the others ends the stream


@asynccontextmanager
async def channel(endpoint: Endpoint, settings: EtcdSettings) -> AsyncIterator[Any]:
    """A gRPC channel to a member; closed at the end, whatever is under way."""
    grpc, _ = library()
    if endpoint.tls:
        ca, key, cert = (
            path and path.read_bytes() for path in (settings.ca, settings.client_key, settings.client_cert)
        )
        opened = grpc.aio.secure_channel(
            endpoint.address, grpc.ssl_channel_credentials(ca, key, cert), options=_OPTIONS
        )
    else:
        opened = grpc.aio.insecure_channel(endpoint.address, options=_OPTIONS)
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def connect(endpoint: Endpoint, settings: EtcdSettings) -> AsyncIterator[EtcdClient]:
    """Open a channel and log in; closed at the end, whatever is under way. Raises EtcdError."""
    grpc, rpc = library()
    failures = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
    async with channel(endpoint, settings) as opened:
        client = EtcdClient(settings, opened, rpc, failures)
        await client.login()
        yield client


@asynccontextmanager
async def _deadline(seconds: float, otherwise: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise EtcdAway(f"{otherwise} within {seconds:g} s") from None


async def _read(stream: Any) -> Any:
    """The next answer of a stream. Raises EtcdAway at its end."""
    answer = await stream.read()
    if not hasattr(answer, "header"):  # gRPC's mark of the end
        raise EtcdAway(f"the stream ended: {await stream.details() or 'no reason given'}")
    return answer


def after(prefix: str) -> bytes:
    """The end of the range of all keys with this prefix."""
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")  # a stranger's key is no reason to stop


def _item(kv: Any) -> Item:
    return Item(kv.value, kv.lease, kv.mod_revision)


def _change(event: Any) -> Change:
    deleted = event.type == 1
    return Change(_text(event.kv.key), None if deleted else _item(event.kv), event.kv.mod_revision)
