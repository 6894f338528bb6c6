"""Responses that are kept in memory."""

import gc
import sqlite3

import pytest

from dynamod.features.responses.store import ResponseStore


def test_the_database_is_closed_with_its_store() -> None:
    """Since Python 3.13 the garbage collection of an open SQLite connection is a ResourceWarning."""
    store = ResponseStore("", 1 << 20)
    database = store._memory
    assert database.execute("SELECT count(*) FROM responses").fetchone() == (0,)
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")
