"""Works at the batches of a folder, a few at a time, alongside other processes of the folder; metrics of batches."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dynamod.http.keys import key_label
from dynamod.observe.metrics import Definition

from .ask import Asker
from .progress import COMPLETED, FAILED
from .records import BatchRecord
from .store import Store
from .work import Work

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("dynamod.frontend")

BATCHES_AT_ONCE = 4
"""Batches in work in one process; all of them share the limit of requests in flight."""
LOOK = 0.5
"""Seconds between two searches for a batch without a process."""
EXPIRE = 30.0
"""Seconds between two searches for files that have expired; clients do not see them meanwhile."""
BROKEN = 10.0
"""Seconds until the next search after a batch has failed with an unexpected error."""
LINES = Definition("counter", "batch_requests", "Lines of batches that this process has answered.", ("status",))
OPEN = Definition("gauge", "batches_open", "Batches that have not ended, of all frontends that share the folder.")
BYTES = Definition("gauge", "batch_files_bytes", "Bytes of files of batches, of all frontends that share the folder.")
KEY_FILES = Definition("gauge", "key_files", "Files that a client key keeps.", ("key",))
KEY_BYTES = Definition("gauge", "key_files_bytes", "Bytes of the files that a client key keeps.", ("key",))
KEY_BATCHES = Definition("gauge", "key_batches_open", "Batches of a client key that have not ended.", ("key",))
OWNERS = 100
"""Keys with the most bytes, whose use is shown: files of keys that are gone stay, and no page may grow with them."""


class Runner:
    """`run` works until it is cancelled. The next process asks the requests in flight again.

    `inflight`: most requests in flight. `longest`: most bytes of a line.
    """

    def __init__(self, store: Store, asker: Asker, inflight: int, longest: int) -> None:
        self._store, self._asker, self._inflight, self._longest = store, asker, inflight, longest
        self._at_once = asyncio.Semaphore(inflight)
        self._alone = asyncio.Lock()  # held for a line at which a process has died: one such line at a time
        self.answered: Counter[str] = Counter()  # lines by `status`
        self._owners: Counter[str] = Counter()  # batches in work in this process, by owner

    async def run(self) -> None:
        """Work until the task is cancelled."""
        try:
            await asyncio.to_thread(self._store.prepare)
        except OSError as error:
            log.warning("the folder of batches: %s", error)
        await asyncio.gather(self._expire(), self._loop(over=True), *[self._loop() for _ in range(BATCHES_AT_ONCE)])

    async def _expire(self) -> None:
        while True:
            try:
                if count := await asyncio.to_thread(self._store.expire):
                    log.info("files of batches: %d have expired and were removed", count)
            except OSError as error:
                log.warning("files of batches that have expired: %s", error)
            await asyncio.sleep(EXPIRE)

    async def _loop(self, *, over: bool = False) -> None:
        """Work at one batch after the other. `over`: only at cancelled and expired batches, which must not wait."""
        while True:
            try:
                worked = await self._one(over=over)
            except Exception:
                log.exception("a batch could not be worked at")
                await asyncio.sleep(BROKEN)
            else:
                if not worked:
                    await asyncio.sleep(LOOK)

    async def _one(self, *, over: bool) -> bool:
        """Work at a batch without a process; return whether there was one. Owners with few batches in work go first."""
        found = await asyncio.to_thread(self._store.unfinished)
        if over:
            found = [one for one in found if self._is_over(one)]
        for record in sorted(found, key=lambda one: (self._owners[one.owner], one.order)):
            held = self._store.lock(record.batch.id)
            if held is None:
                continue
            with held:
                now = self._store.unended(record.batch.id)
                if now is None:
                    continue
                await self._work(now)
                return True
        return False

    def _is_over(self, record: BatchRecord) -> bool:
        return record.batch.expires_at <= time.time() or self._store.cancelled(record.batch.id) is not None

    async def _work(self, record: BatchRecord) -> None:
        self._owners[record.owner] += 1
        try:
            common = (self._at_once, self._alone, self._inflight, self._longest, self.answered)
            await Work(self._store, record, self._asker, *common).run()
        finally:
            self._owners[record.owner] -= 1

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """Metric families, whose names begin with `prefix`.

        The folder is read in a thread. A number that cannot be read is left out.
        """
        lines = LINES.family(prefix)
        for status in (COMPLETED, FAILED):
            lines.add_metric([status], self.answered[status])
        found: list[Metric] = [lines]
        for definition, read in ((OPEN, self._store.open), (BYTES, self._store.used)):
            try:
                value = await asyncio.to_thread(read)
            except OSError:
                continue
            family = definition.family(prefix)
            family.add_metric([], value)
            found.append(family)
        with contextlib.suppress(OSError):
            files, batches = await asyncio.to_thread(self._store.use)
            found += _use(prefix, files, batches)
        return found


def _use(prefix: str, files: Mapping[str, tuple[int, int]], batches: Mapping[str, int]) -> "Iterable[Metric]":
    """What keys keep; nothing where there are no keys."""
    counts, sizes, works = families = [one.family(prefix) for one in (KEY_FILES, KEY_BYTES, KEY_BATCHES)]
    owners = sorted({*files, *batches} - {""}, key=lambda owner: files.get(owner, (0, 0))[1], reverse=True)
    for owner in owners[:OWNERS]:
        count, size = files.get(owner, (0, 0))
        label = [key_label(owner)]
        counts.add_metric(label, count)
        sizes.add_metric(label, size)
        works.add_metric(label, batches.get(owner, 0))
    return families if owners else ()
