"""Responses that clients may read again, or continue from: in SQLite, in memory or in a file that frontends share.

One thread does all work on the database, in the order of the calls, so that a client can continue from a response as
soon as the response has been sent. The wait for another frontend that writes is BUSY seconds at most.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Semaphore
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import finalize

import msgspec

from dynamod.http.keys import key_label
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import Frontend
from dynamod.ingress.own_folder import own_folder, refuse_newer
from dynamod.message.errors import Overloaded, UserError
from dynamod.message.openai import Message
from dynamod.observe.bounded import bounded
from dynamod.observe.metrics import Definition

from .messages import InputItem
from .settings import Quota, ResponsesSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("dynamod.frontend")

MOST = 100_000
"""Responses that are kept at most, whatever their size."""
BUSY = 5.0
"""Seconds to wait for another process that writes."""
BEHIND = 256
"""Responses that may wait to be written; a disk that is slower than that loses the next ones."""
LATE = (0.02, 0.08, 0.2)
"""Seconds between looks for what is not there: another frontend may be about to write it."""
FILE = "responses.sqlite"
FORMAT = 1
"""Of tables and values, as SQLite's `user_version`. A change that an older release would misread raises it."""
_TABLES = """
CREATE TABLE IF NOT EXISTS responses (id TEXT PRIMARY KEY, used INTEGER, size INTEGER, value BLOB);
CREATE INDEX IF NOT EXISTS oldest ON responses (used, size);
CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, response TEXT, value BLOB);
CREATE INDEX IF NOT EXISTS of_response ON items (response);
CREATE TABLE IF NOT EXISTS owners (response TEXT PRIMARY KEY, owner TEXT);
CREATE INDEX IF NOT EXISTS of_owner ON owners (owner);
CREATE TRIGGER IF NOT EXISTS disowned AFTER DELETE ON responses
BEGIN DELETE FROM owners WHERE response = old.id; END;
"""
# Owners have a table of their own: releases without owners insert four values into `responses`, and share the file.
# The trigger runs when such a release deletes a response, too.
_OWNED = "FROM responses JOIN owners ON response = id"
_OWN = f"{_OWNED} WHERE owner = ?"
NO_QUOTA = Quota()
OWNERS = 100
"""Keys with the most bytes, whose use is shown."""
KEY_RESPONSES = Definition("gauge", "key_responses", "Responses that are kept for a client key.", ("key",))
KEY_BYTES = Definition(
    "gauge", "key_responses_bytes", "Bytes of the responses that are kept for a client key.", ("key",)
)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and the conversation with it, without instructions.

    `items`: the same conversation up to it, as clients send it. `answer`: its own.
    """

    body: bytes
    messages: tuple[Message, ...]
    items: tuple[InputItem, ...] = ()
    answer: tuple[InputItem, ...] = ()


_response, _item = msgspec.msgpack.Decoder(StoredResponse), msgspec.msgpack.Decoder(InputItem)
_encode = msgspec.msgpack.encode
T = TypeVar("T")


class ResponseStore:
    """At most `limit` bytes and `most` responses; the least used leave first. So do those of an owner above `quota`.

    `folder`: of the file; empty: in memory. Raises UserError when the folder cannot be used.
    """

    def __init__(self, folder: str, limit: int, most: int = MOST, quota: Quota = NO_QUOTA) -> None:
        self._limit, self._most, self._quota, self._places = limit, most, quota, Semaphore(BEHIND)
        self._path = own_folder(folder, "responses_dir") / FILE if folder else None
        self._late = LATE if folder else ()
        self._thread = ThreadPoolExecutor(1, "responses")
        self._count = self._size = 0  # of the responses that are kept, as the thread has read them last
        try:
            if self._path is None:  # one connection: another one would have another memory
                self._memory = sqlite3.connect(":memory:", check_same_thread=False)
                # Since Python 3.13 the garbage collection of an open connection is a ResourceWarning.
                finalize(self, self._memory.close)
            else:
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with self._database() as database:
                (found,) = database.execute("PRAGMA user_version").fetchone()
                if self._path is not None:
                    refuse_newer(self._path, "responses_dir", found, FORMAT)
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_TABLES)
                self._measure(database)
                if not found:  # the tables are new, or of a release before 0.2.0, which has these and writes no number
                    database.execute(f"PRAGMA user_version = {FORMAT}")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"responses_dir: {self._path}: {error}", "choose another folder") from None
        where = "file" if folder else "memory"
        bounded(self, "kept responses", limit, lambda one: one._size, "bytes", where)
        bounded(self, "kept responses", most, lambda one: one._count, "responses", where)

    def put(self, name: str, stored: StoredResponse, owner: str = "") -> "Future[None] | None":
        """Keep a response of an owner; the future ends when the response is kept. A failure is in the log."""
        if not self._places.acquire(blocking=False):
            log.warning("response %s is not kept: %d others are not written yet", name, BEHIND)
            return None
        return self._thread.submit(self._put, name, stored, owner)

    async def get(self, name: str, owner: str | None = None) -> StoredResponse | None:
        """A response that an owner sees, which is used by that; None as `owner`: of any owner.

        All owners see a response without an owner. Raises Overloaded when the file cannot be read.
        """
        return await self._find(lambda database: self._get(database, name, owner))

    async def item(self, name: str, owner: str | None = None) -> InputItem | None:
        """An item of an answer that an owner sees, as for `get`. Raises Overloaded."""

        def find(database: sqlite3.Connection) -> InputItem | None:
            row = database.execute("SELECT response, value FROM items WHERE id = ?", (name,)).fetchone()
            seen = row is not None and _sees(database, row[0], owner)
            return _decoded(database, row[0], _item, row[1]) if seen else None

        return await self._find(find)

    async def remove(self, name: str, owner: str | None = None) -> bool:
        """Keep a response no more; whether it was there for the owner, as for `get`. Raises Overloaded."""

        def work(database: sqlite3.Connection) -> bool:
            found = _sees(database, name, owner) and _remove(database, name)
            self._measure(database)
            return found

        return await self._do(work)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection, in a transaction."""
        if self._path is None:
            with self._memory:
                yield self._memory
        else:
            with closing(sqlite3.connect(self._path, timeout=BUSY)) as database, database:
                yield database

    async def _find(self, find: Callable[[sqlite3.Connection], T | None]) -> T | None:
        """The kept response, also one that comes at once: another frontend may be about to write it."""
        for wait in self._late:
            if (found := await self._do(find)) is not None:
                return found
            await asyncio.sleep(wait)
        return await self._do(find)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def call() -> T:
            with self._database() as database:
                return work(database)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error:
            log.exception("the kept responses cannot be used")
            raise Overloaded(
                "the kept responses cannot be read now", code="responses_unavailable", retry_after=1
            ) from None

    def _put(self, name: str, stored: StoredResponse, owner: str) -> None:
        try:
            value = _encode(stored)
            if len(value) > self._limit:
                return
            with self._database() as database:
                _remove(database, name)
                row = (name, time.time_ns(), len(value), value)
                database.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", row)
                database.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (name, owner))
                items = [(item.id, name, _encode(item)) for item in stored.answer if item.id]
                database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", items)
                if any(self._quota):
                    self._keep_to_quota(database, owner)
                self._make_room(database)
        except Exception:  # its client gets the response all the same
            log.exception("response %s is not kept", name)
        finally:
            self._places.release()

    def _keep_to_quota(self, database: sqlite3.Connection, owner: str) -> None:
        count, size = database.execute(f"SELECT count(*), total(size) {_OWN}", (owner,)).fetchone()
        while count > (self._quota.responses or count) or size > (self._quota.bytes or size):
            name, less = database.execute(f"SELECT id, size {_OWN} ORDER BY used LIMIT 1", (owner,)).fetchone()
            _remove(database, name)
            count, size = count - 1, size - less

    async def use(self) -> dict[str, tuple[int, int]]:
        """Number and bytes of the responses of each owner. Raises Overloaded."""

        def work(database: sqlite3.Connection) -> dict[str, tuple[int, int]]:
            query = f"SELECT owner, count(*), total(size) {_OWNED} GROUP BY owner ORDER BY 3 DESC LIMIT {OWNERS}"
            return {owner: (count, int(size)) for owner, count, size in database.execute(query)}

        return await self._do(work)

    async def families(self, prefix: str) -> "Iterable[Metric]":
        """What keys keep, as metric families; nothing where there are no keys."""
        try:
            use = await self.use()
        except Overloaded:  # the log has it
            return ()
        counts, sizes = families = [one.family(prefix) for one in (KEY_RESPONSES, KEY_BYTES)]
        for owner, (count, size) in use.items():
            if owner:
                counts.add_metric([key_label(owner)], count)
                sizes.add_metric([key_label(owner)], size)
        return families if use.keys() - {""} else ()

    def _make_room(self, database: sqlite3.Connection) -> None:
        self._measure(database)
        while self._count > self._most or self._size > self._limit:
            name, less = database.execute("SELECT id, size FROM responses ORDER BY used LIMIT 1").fetchone()
            _remove(database, name)
            self._count, self._size = self._count - 1, self._size - less

    def _measure(self, database: sqlite3.Connection) -> None:
        """Read how many responses are kept, and their bytes, also those of other frontends."""
        count, size = database.execute("SELECT count(*), total(size) FROM responses").fetchone()
        self._count, self._size = count, int(size)

    def _get(self, database: sqlite3.Connection, name: str, owner: str | None) -> StoredResponse | None:
        row = database.execute("SELECT value FROM responses WHERE id = ?", (name,)).fetchone()
        if row is None or not _sees(database, name, owner):
            return None
        database.execute("UPDATE responses SET used = ? WHERE id = ?", (time.time_ns(), name))
        return _decoded(database, name, _response, row[0])


def _decoded(database: sqlite3.Connection, name: str, decoder: "msgspec.msgpack.Decoder[T]", value: bytes) -> T | None:
    """What is kept of a response; None, and it goes, where a release with other fields has written it."""
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as error:
        log.warning("response %s cannot be read and is not kept any more: %s", name, error)
        _remove(database, name)
        return None


def _sees(database: sqlite3.Connection, name: str, owner: str | None) -> bool:
    """Whether an owner sees a response. Releases without owners have written those without one."""
    row = database.execute("SELECT owner FROM owners WHERE response = ?", (name,)).fetchone()
    return owner is None or row is None or row[0] == owner


def _remove(database: sqlite3.Connection, name: str) -> bool:
    database.execute("DELETE FROM items WHERE response = ?", (name,))
    return database.execute("DELETE FROM responses WHERE id = ?", (name,)).rowcount > 0


def open_store(settings: FrontendSettings) -> ResponseStore:
    """Where a frontend keeps responses. Raises UserError when its folder cannot be used."""
    own = msgspec.convert(settings, ResponsesSettings, from_attributes=True)
    return ResponseStore(own.responses_dir, own.limit, quota=own.quota)


def kept_by(frontend: Frontend) -> ResponseStore:
    """Where this frontend keeps responses."""
    return cast(ResponseStore, frontend.parts["responses"])
