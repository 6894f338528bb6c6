"""The actor that joins a node's registry with those of other nodes through etcd.

It lives alongside the daemon's MemoryRegistry, on the node that holds it. Etcd is never in the way: what this node does
continues without it, what is known of others stays, and everything is said again when it is back.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from dynamod.actor import Actor, Normal, Reason, handle
from dynamod.discovery.keys import OPERATOR_SETTINGS, SHARED
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.control import Ping
from dynamod.transport.signing import Signing
from dynamod.transport.waiting import comes

from .client import EtcdClient, Item, connect, library
from .errors import Compacted, EtcdAway, EtcdError, EtcdRefused, LeaseMissing, LeaseTaken, Rejoin, TooMuch
from .mirror import Batch, EtcdMirror
from .settings import Endpoint, EtcdSettings
from .signed import SignedValues

log = logging.getLogger("dynamod.registry")

GRACE = 5.0  # seconds that keys which etcd has lost stay visible
RETRY, RETRY_AT_MOST = 0.2, 1.0  # between attempts, growing
REFUSED = 10.0  # between attempts with credentials that were refused
SAY, SAY_AT_MOST = 5.0, 60.0  # between lines of one outage, growing
TAKEN = 1.0  # between attempts to get a lease id that is not free
LAST_PUT = 0.5  # for what is said last
GOODBYE = 1.0  # for revoking at the end
AT_ONCE = 64  # calls under way
MOST_SIGNED = 50  # keys of one call where each key may have a signature: etcd takes 128 operations


class EtcdBridge(Actor):
    """Mirrors `registry` into etcd, and what stands there under `v1/` into it. Raises UserError without the library."""

    def __init__(self, registry: MemoryRegistry, settings: EtcdSettings, signing: Signing | None = None) -> None:
        library()
        self._registry, self._settings = registry, settings
        self._signing = signing or Signing()
        self._signed = SignedValues(self._signing, lambda key: registry.own(key) is not None)
        self._over: asyncio.Future[EtcdError] | None = None  # ends the session
        self._mirror = EtcdMirror(registry)
        self._client: EtcdClient | None = None
        self._endpoint = settings.endpoints[0]
        self._known = False  # whether there is a view of the others
        self._error = ""
        self._sessions = 0
        self._joined = 0.0  # when the last session began
        self._said = True  # whether a line that etcd is there is due
        self._outage = 0.0  # when the next line that it is away is due
        self._pause = SAY

    @handle
    async def ping(self, message: Ping) -> str:
        """Answer the daemon's watchdog."""
        return "pong"

    async def started(self) -> None:
        """Begin to look for etcd; does not wait for it."""
        self._signing.changed.append(self._rejoin)
        self.context.task(self._keep(), "keep etcd")

    async def stopping(self, reason: Reason) -> None:
        """Put what is not put yet, and revoke all leases, within LAST_PUT and GOODBYE.

        After a crash the leases stay: the next bridge adopts them.
        """
        self._signing.changed.remove(self._rejoin)
        client = self._client if isinstance(reason, Normal) else None
        if client is not None:  # that the daemon leaves, for one: the end of a lease alone looks like a lost node
            with contextlib.suppress(EtcdError, TimeoutError):
                async with asyncio.timeout(LAST_PUT), self._mirror.saying:
                    await _each(self._changes(client))
        self._mirror.close()
        if client is None:
            return
        leases = [*self._mirror.leases.held(), *self._mirror.leases.ends()]
        try:
            async with asyncio.timeout(GOODBYE):
                await _each(functools.partial(_revoke, client, lease) for lease in leases)
        except (EtcdError, TimeoutError) as error:
            log.warning("etcd: %d leases are left to their TTL of %d s (%s)", len(leases), self._settings.ttl, error)

    @property
    def connected(self) -> bool:
        """Whether etcd is there now."""
        return self._client is not None

    def inspection(self) -> dict[str, Any]:
        """The member we speak to, leases with their states, numbers of keys, and what went wrong last."""
        statistics = self._registry.statistics()
        return {
            "endpoint": str(self._endpoint),
            "connected": self.connected,
            "sessions": self._sessions,
            "revision": self._mirror.revision,
            "leases": {f"{lease:x}": state for lease, state in self._mirror.leases.states.items()},
            "keys": {"own": statistics.keys, "foreign": statistics.foreign, **self._mirror.statistics()},
            **self._signed.inspection(),
            "last_error": self._error,
        }

    # One session after another.

    async def _keep(self) -> None:
        endpoints = self._settings.endpoints
        tries = 0
        while True:
            self._endpoint = endpoints[tries % len(endpoints)]
            before = self._sessions
            error = await self._session(self._endpoint)
            if isinstance(error, Rejoin):
                continue
            self._error = str(error)
            refused = isinstance(error, EtcdRefused)
            joined = self._sessions > before
            if joined:
                tries = endpoints.index(self._endpoint)
                if self.context.now() - self._joined > SAY:  # else it comes and goes, and that is said rarely
                    self._outage, self._pause = 0.0, SAY
            tries += 1
            if joined or tries >= len(endpoints):
                self._complain(joined, refused)
            if refused and joined:  # the leases that we have still want to be kept
                await asyncio.sleep(min(REFUSED, self._settings.ttl / 3))
            elif joined or tries % len(endpoints) == 0:
                pause = min(RETRY * 1.5 ** min(tries // len(endpoints), 10), RETRY_AT_MOST)
                await asyncio.sleep(REFUSED if refused else pause * self.context.random.uniform(0.75, 1.25))

    def _complain(self, lost: bool, refused: bool) -> None:
        now = self.context.now()
        if now < self._outage:
            return
        self._outage, self._pause = now + self._pause, min(self._pause * 2, SAY_AT_MOST)
        self._said = True
        alone = "the last known view" if self._known else "this node alone"
        if lost:
            log.warning("etcd at %s is lost (%s); continuing with %s", self._endpoint, self._error, alone)
        elif refused:
            text = "etcd at %s refuses this node (%s); check ETCD_AUTH_* and the rights of the user; continuing with %s"
            log.error(text, self._endpoint, self._error, alone)
        else:
            where = ", ".join(str(endpoint) for endpoint in self._settings.endpoints)
            log.warning("etcd at %s does not answer (%s); continuing with %s", where, self._error, alone)

    async def _session(self, endpoint: Endpoint) -> EtcdError:
        """One connection, from its beginning to the error that ended it."""
        try:
            async with connect(endpoint, self._settings) as client:
                return await self._joined_at(endpoint, client)
        except EtcdError as error:
            return error

    async def _joined_at(self, endpoint: Endpoint, client: EtcdClient) -> EtcdError:
        items, revision = await client.snapshot(SHARED)
        start = self._mirror.resync(self._signed.snapshot(items, revision), revision)
        self._known = True
        self._sessions += 1
        self._joined = self.context.now()
        self._error = ""
        if self._said:
            self._said = False
            log.info("etcd at %s: joined at revision %d", endpoint, self._mirror.revision)
        over: asyncio.Future[EtcdError] = asyncio.get_running_loop().create_future()
        self._over = over
        tasks: list[asyncio.Task[Any]] = []
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "watch": lambda: self._follow(client, start),
            "leases": lambda: self._renew(client),
            "settings": lambda: follow_settings(client, self._registry),
            "publish": lambda: self._publish(client),
            "grace": self._forgive,
        }
        try:
            self._client = client
            tasks += [self.context.task(_until(over, part), f"etcd {name}") for name, part in parts.items()]
            return await over
        finally:
            self._client = None
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _rejoin(self) -> None:
        """Other signatures are made, or taken, from now on. What is not taken any more goes after GRACE."""
        self._mirror.again()
        if self._over is not None and not self._over.done():
            self._over.set_result(Rejoin("other signatures are taken"))

    # The parts of a session.

    async def _follow(self, client: EtcdClient, start: int) -> None:
        while True:
            try:
                async with contextlib.aclosing(client.watch(SHARED, start)) as watch:
                    async for changes in watch:
                        self._mirror.apply(self._signed.changes(changes))
            except Compacted as error:
                if start > self._mirror.revision:
                    raise EtcdAway(str(error)) from None
                start = self._mirror.compacted()

    async def _renew(self, client: EtcdClient) -> None:
        interval = self._settings.ttl / 3
        patience = max(1.0, min(interval, 2.0))
        async with client.renewals() as renew:
            while True:
                self._mirror.heartbeat.clear()
                leases = self._mirror.leases.held()
                for lease in await renew(leases, patience):
                    log.warning("etcd: lease %x has expired; granting it again", lease)
                    self._mirror.lost(lease)
                if not leases or client.logged_in:
                    await client.ping(SHARED)
                await comes(self._mirror.heartbeat, interval)

    async def _publish(self, client: EtcdClient) -> None:
        mirror = self._mirror
        again = True  # ask again for ids that were not free
        while True:
            mirror.wake.clear()
            async with mirror.saying:
                ends = [functools.partial(self._end, client, lease) for lease in mirror.leases.ends()]
                # with them, not after them: that a process is gone is put while its lease ends, and streams wait for it
                await _each([*ends, *self._changes(client)])
                grants = mirror.leases.wanted(taken=again)
                await _each(functools.partial(self._grant, client, lease) for lease in grants)
                await _each(self._changes(client))
            waiting = len(mirror.leases.wanted(taken=True)) > len(mirror.leases.wanted())
            again = not await comes(mirror.wake, TAKEN if waiting else None)

    def _changes(self, client: EtcdClient) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Calls for all that is to be put or deleted now; they may be made together, for no key is in two of them."""
        batches, deletions = self._mirror.take()
        puts = [functools.partial(self._put, client, batch) for batch in batches]
        return [*puts, *(functools.partial(self._delete, client, *deletion) for deletion in deletions)]

    async def _forgive(self) -> None:
        await asyncio.sleep(GRACE)
        self._mirror.expire()

    async def _end(self, client: EtcdClient, lease: int) -> None:
        try:
            revision = await client.revoke(lease)
        except LeaseMissing:
            revision = await client.ping(SHARED)  # it has expired before this
        self._mirror.ended(lease, revision)

    async def _grant(self, client: EtcdClient, lease: int) -> None:
        try:
            await client.grant(lease, self._settings.ttl)
        except LeaseTaken:
            known = self._mirror.leases.states.get(lease) == "taken"
            if not self._mirror.taken(lease) and not known:
                log.warning("etcd: lease id %x is held by another node; its keys wait until it is free", lease)
        except LeaseMissing:
            raise EtcdAway("etcd does not know the lease that it grants") from None
        except BaseException:
            self._mirror.granted_at_last(lease, certain=False)
            raise
        else:
            self._mirror.granted_at_last(lease)

    async def _put(self, client: EtcdClient, batch: Batch) -> None:
        try:
            if self._signing.signer is not None and len(batch.items) > MOST_SIGNED:
                for part in (batch.items[:MOST_SIGNED], batch.items[MOST_SIGNED:]):
                    await self._put(client, Batch(batch.lease, part))
                return
            self._mirror.done(batch, await client.put(self._signed.outgoing(batch.items, batch.lease), batch.lease))
        except LeaseMissing:
            self._mirror.failed(key for key, _ in batch.items)
            self._mirror.lost(batch.lease)
        except TooMuch as error:
            if len(batch.items) > 1:
                for item in batch.items:
                    await self._put(client, Batch(batch.lease, [item]))
                return
            ((key, value),) = batch.items
            log.error("etcd: %s with %d bytes stays on this node (%s); see --max-request-bytes", key, len(value), error)
            self._mirror.oversized(key)
        except BaseException:
            self._mirror.failed(key for key, _ in batch.items)
            raise

    async def _delete(self, client: EtcdClient, key: str, lease: int) -> None:
        try:
            self._mirror.deleted_at_last(key, lease, await client.delete(key, lease, self._signed.beside(key)))
        except BaseException:
            self._mirror.failed([key])
            raise


async def _until(over: asyncio.Future[EtcdError], part: Callable[[], Awaitable[None]]) -> None:
    """Run a part of the session; an error of etcd's ends the session, any other is a crash."""
    try:
        await part()
    except EtcdError as error:
        if not over.done():
            over.set_result(error)


async def _revoke(client: EtcdClient, lease: int) -> None:
    """End a lease, if it has not ended already."""
    with contextlib.suppress(LeaseMissing):
        await client.revoke(lease)


async def follow_settings(client: EtcdClient, registry: MemoryRegistry) -> None:
    """Copy the keys that operators put into etcd. The node owns none of them, so they do not pass the mirror."""

    def copy(key: str, item: Item | None) -> None:
        if item is None:
            registry.delete_foreign(key)
        else:
            registry.put_foreign(key, item.value)

    items, revision = await client.snapshot(OPERATOR_SETTINGS)
    changes = [(key, None) for key, _ in registry.items(OPERATOR_SETTINGS) if key not in items]
    for key, item in [*changes, *items.items()]:
        copy(key, item)
    async with contextlib.aclosing(client.watch(OPERATOR_SETTINGS, revision + 1)) as watch:
        async for news in watch:
            for key, item, _ in news:
                copy(key, item)


async def _each(calls: Iterable[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    """Make the calls, AT_ONCE together; all have ended when this does. Raises the first error."""
    todo = list(calls)
    while todo:
        now, todo = todo[:AT_ONCE], todo[AT_ONCE:]
        for outcome in await asyncio.gather(*(call() for call in now), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
