"""The actor that joins this pod with others through the API server.

The API server is never in the way: without it this node continues with what it knew, and says everything again later.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from dynamod.actor import Actor, Normal, Reason, handle
from dynamod.discovery.keys import SHARED
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.control import Ping
from dynamod.message.errors import DynamodError

from .api import BOOKMARK, OPENED, Api, ApiGone, ApiInvalid, ApiRefused
from .peers import Peers
from .resources import INSTANCES, SLICES, Held, Kind, own_resource
from .settings import KubernetesSettings

log = logging.getLogger("dynamod.registry")

RETRY, RETRY_AT_MOST = 0.5, 15.0
"""Seconds between attempts, growing; each between a half and one and a half of it."""
REFUSED = 15.0
"""Seconds between attempts after a refusal."""
RELIST, RELIST_EACH, RELIST_AT_MOST = 2.0, 0.02, 30.0
"""Seconds within which pods list again when the API server has dropped the history of all their watches.

`RELIST_EACH` per pod of the graph, so that lists of a large fleet are as far apart as those of a small one.
"""
BRIEF = 1.0
"""Seconds below which a watch that the server ends counts as an attempt that failed."""
MERGE = 0.02
"""Seconds within which changes of this node are written together."""
SAY, SAY_AT_MOST = 5.0, 300.0
"""Seconds between lines of one outage, growing."""
GOODBYE, LAST_WRITE = 1.0, 0.5
"""Seconds for the removal of our resource at the end, and of these for what is written last."""


class KubernetesBridge(Actor):
    """Mirrors `registry` into the resource of this pod, and the resources of other pods into it."""

    def __init__(self, registry: MemoryRegistry, settings: KubernetesSettings, node: str) -> None:
        self._registry, self._settings, self._node = registry, settings, node
        self._peers = Peers(registry, settings.pod)
        self._wake, self._writing = asyncio.Event(), asyncio.Lock()  # something is to be written; it is written now
        self._joined: set[Kind] = set()  # what was listed, and is followed now
        self._errors: dict[str, str] = {}
        self._said = 0.0  # when the next line of an outage is due
        self._pause = SAY
        self._written = False

    @handle
    async def ping(self, message: Ping) -> str:
        """Answer the daemon's watchdog."""
        return "pong"

    async def started(self) -> None:
        """Begin to look for the API server; does not wait for it."""
        self._registry.mirror = self
        self._wake.set()
        self.context.task(self._keep(), "keep")

    async def stopping(self, reason: Reason) -> None:
        """Write what is not written yet, and remove our resource, within GOODBYE.

        After a crash it stays: the next bridge replaces it.
        """
        self._registry.mirror = None
        if not isinstance(reason, Normal) or not (self._written or self._writing.locked()):
            return
        with contextlib.suppress(DynamodError, TimeoutError):
            async with asyncio.timeout(GOODBYE), Api(self._settings) as api:
                with contextlib.suppress(DynamodError, TimeoutError):  # the resource goes in any case
                    async with asyncio.timeout(LAST_WRITE), self._writing:  # else a write could come after the removal
                        if self._wake.is_set():  # that the daemon leaves, for one: else its node looks like a lost one
                            await api.apply(INSTANCES, self._settings.pod, self._content())
                await api.delete(INSTANCES, self._settings.pod)

    def inspection(self) -> dict[str, Any]:
        """The server, what is known of other pods, and what went wrong last."""
        return {
            "endpoint": self._settings.url,
            "connected": self._joined == {INSTANCES, SLICES} and not self._errors,
            "written": self._written,
            **self._peers.statistics(),
            "last_error": "; ".join(self._errors.values()),
        }

    # Changes of the registry; see discovery.backend.Mirror.

    def granted(self, lease: int) -> None:
        """Nothing is written of a lease without keys."""

    def revoked(self, lease: int, keys: list[str]) -> None:
        """The keys go."""
        self._wake.set()

    def put(self, key: str, value: bytes, lease: int) -> None:
        """The value is written."""
        if key.startswith(SHARED):
            self._wake.set()

    def deleted(self, key: str, lease: int) -> None:
        """The key goes."""
        if key.startswith(SHARED):
            self._wake.set()

    # The three parts of a session, which lasts until the actor ends.

    async def _keep(self) -> None:
        random = self.context.random
        async with Api(self._settings, self._settings.graph, random.random) as api:
            parts: dict[str, Callable[[Api], Coroutine[Any, Any, None]]] = {
                "instances": lambda api: self._follow(api, INSTANCES, self._instances, self._instance),
                "slices": lambda api: self._follow(api, SLICES, self._peers.slices, self._peers.slice),
                "own": self._publish,
            }
            tasks = [self.context.task(part(api), name) for name, part in parts.items()]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()

    def _instances(self, found: dict[str, Any]) -> None:
        own = found.get(self._settings.pod)
        if self._written and (own is None or own.get("spec") != self._content()["spec"]):
            self._wake.set()  # the store has gone back to what it had before
        self._peers.instances(found)

    def _instance(self, name: str, value: Any) -> None:
        if name == self._settings.pod and value is None:
            self._wake.set()  # another has removed it
        self._peers.instance(name, value)

    async def _follow(
        self, api: Api, kind: Kind, every: Callable[[dict[str, Any]], None], one: Callable[[str, Any], None]
    ) -> None:
        version, tries = "", 0
        while True:
            begun = self.context.now()
            try:
                if not version:
                    found, version = await api.all(kind)
                    every(found)
                async with contextlib.aclosing(api.changes(kind, version)) as changes:
                    async for change in changes:
                        if change.type == OPENED:
                            self._well(kind)
                            continue
                        if change.type != BOOKMARK:
                            one(change.name, change.value)
                        version, tries = change.version or version, 0
            except ApiGone:
                version = ""
                within = min(RELIST_EACH * self._peers.statistics()["pods"], RELIST_AT_MOST)
                await asyncio.sleep(max(RELIST, within) * self.context.random.random())
            except DynamodError as error:
                tries += 1
                self._wrong(kind.plural, error)
                self._joined.discard(kind)
                await self._pause_after(error, tries)
            else:  # the server has ended the watch, as asked, or at once, as proxies may do
                tries = tries + 1 if self.context.now() < begun + BRIEF else 0
                await self._pause_after(None, tries)

    async def _publish(self, api: Api) -> None:
        tries = 0
        while True:
            await self._wake.wait()
            await asyncio.sleep(MERGE)
            async with self._writing:
                if self._registry.mirror is not self:
                    return  # the pod ends: `stopping` has the last word
                failed = await self._write(api)
            if failed is None:
                tries = 0
            else:
                tries += 1
                await self._pause_after(failed, tries)

    async def _write(self, api: Api) -> DynamodError | None:
        """What has to be tried again, None: nothing."""
        self._wake.clear()
        try:
            await api.apply(INSTANCES, self._settings.pod, self._content())
        except ApiInvalid as error:
            log.error("Kubernetes: what this pod says of itself is not taken: %s", error)
            self._errors["own"] = str(error)
        except DynamodError as error:
            self._wake.set()
            self._wrong("own", error)
            return error
        else:
            self._written = True
            self._errors.pop("own", None)
        return None

    def _content(self) -> dict[str, Any]:
        """The resource of this pod as it is to be."""
        own = self._registry.own_items()
        keys = {key: value.decode(errors="replace") for key, value, _ in own if key.startswith(SHARED)}
        settings = self._settings
        return own_resource(settings.pod, settings.uid, settings.graph, Held(keys, self._node))

    async def _pause_after(self, error: DynamodError | None, tries: int) -> None:
        pause = (
            REFUSED if isinstance(error, ApiRefused) else min(RETRY * 1.6 ** min(max(tries - 1, 0), 20), RETRY_AT_MOST)
        )
        await asyncio.sleep(pause * self.context.random.uniform(0.5, 1.5))

    def _well(self, kind: Kind) -> None:
        self._errors.pop(kind.plural, None)
        self._joined.add(kind)
        if self._joined == {INSTANCES, SLICES} and not self._errors and (self._said or not self._written):
            self._said, self._pause = 0.0, SAY
            log.info("Kubernetes: following the pods of %s in %s", self._settings.graph, self._settings.namespace)

    def _wrong(self, part: str, error: DynamodError) -> None:
        self._errors[part] = str(error)
        now = self.context.now()
        if now < self._said:
            return
        self._said, self._pause = now + self._pause, min(self._pause * 2, SAY_AT_MOST)
        level = logging.ERROR if isinstance(error, ApiRefused) else logging.WARNING
        log.log(level, "Kubernetes at %s: %s; continuing with the last known view", self._settings.url, error)
