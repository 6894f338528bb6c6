"""Responses in a file of SQLite, which the frontends of a node share and a restart leaves as it is.

All that touches the file is done in one thread, in the order in which it was asked for, so that a response that has
been sent can be gone on from at once. Another frontend is waited for BUSY seconds at most.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Semaphore
from typing import TypeVar

import msgspec

from dynamod.ingress.own_folder import own_folder, refuse_newer
from dynamod.message.errors import Overloaded, UserError

from .messages import InputItem
from .store import StoredResponse

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
"""
_response, _item = msgspec.msgpack.Decoder(StoredResponse), msgspec.msgpack.Decoder(InputItem)
_encode = msgspec.msgpack.encode
T = TypeVar("T")


class SharedResponses:
    """At most `limit` bytes in `folder`; the least used leave first. Raises UserError when that cannot be used."""

    def __init__(self, folder: str, limit: int, most: int = MOST) -> None:
        self._limit, self._most, self._places = limit, most, Semaphore(BEHIND)
        self._path = own_folder(folder, "responses_dir") / FILE
        self._thread = ThreadPoolExecutor(1, "responses")
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            with closing(self._open()) as database:
                (found,) = database.execute("PRAGMA user_version").fetchone()
                refuse_newer(self._path, "responses_dir", found, FORMAT)
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_TABLES)
                if not found:  # the tables are new, or of a release before 0.2.0, which has these and writes no number
                    database.execute(f"PRAGMA user_version = {FORMAT}")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"responses_dir: {self._path}: {error}", "choose another folder") from None

    def put(self, name: str, stored: StoredResponse) -> "Future[None] | None":
        """Keep a response, which is done when the result is; the log says so when that cannot be done."""
        if not self._places.acquire(blocking=False):
            log.warning("response %s is not kept: %d others are not written yet", name, BEHIND)
            return None
        return self._thread.submit(self._put, name, stored)

    async def get(self, name: str) -> StoredResponse | None:
        """A response, which is used by that. Raises Overloaded when the file cannot be read."""
        return await self._late(lambda database: self._get(database, name))

    async def item(self, name: str) -> InputItem | None:
        """An item of an answer. Raises Overloaded."""

        def find(database: sqlite3.Connection) -> InputItem | None:
            row = database.execute("SELECT response, value FROM items WHERE id = ?", (name,)).fetchone()
            return None if row is None else _decoded(database, row[0], _item, row[1])

        return await self._late(find)

    async def remove(self, name: str) -> bool:
        """Keep it no more; whether it was there. Raises Overloaded."""
        return await self._do(lambda database: _remove(database, name))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY)

    async def _late(self, find: Callable[[sqlite3.Connection], T | None]) -> T | None:
        """What is there, or comes at once: another frontend may be about to write it."""
        for wait in LATE:
            if (found := await self._do(find)) is not None:
                return found
            await asyncio.sleep(wait)
        return await self._do(find)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def call() -> T:
            with closing(self._open()) as database, database:
                return work(database)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error:
            log.exception("the file of responses cannot be used")
            raise Overloaded(
                "the kept responses cannot be read now", code="responses_unavailable", retry_after=1
            ) from None

    def _put(self, name: str, stored: StoredResponse) -> None:
        try:
            value = _encode(stored)
            if len(value) > self._limit:
                return
            with closing(self._open()) as database, database:
                _remove(database, name)
                row = (name, time.time_ns(), len(value), value)
                database.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", row)
                items = [(item.id, name, _encode(item)) for item in stored.answer if item.id]
                database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", items)
                self._make_room(database)
        except Exception:  # its client gets the response all the same
            log.exception("response %s is not kept", name)
        finally:
            self._places.release()

    def _make_room(self, database: sqlite3.Connection) -> None:
        count, size = database.execute("SELECT count(*), total(size) FROM responses").fetchone()
        while count > self._most or size > self._limit:
            name, less = database.execute("SELECT id, size FROM responses ORDER BY used LIMIT 1").fetchone()
            _remove(database, name)
            count, size = count - 1, size - less

    def _get(self, database: sqlite3.Connection, name: str) -> StoredResponse | None:
        row = database.execute("SELECT value FROM responses WHERE id = ?", (name,)).fetchone()
        if row is None:
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


def _remove(database: sqlite3.Connection, name: str) -> bool:
    database.execute("DELETE FROM items WHERE response = ?", (name,))
    return database.execute("DELETE FROM responses WHERE id = ?", (name,)).rowcount > 0
