"""Files of older releases are taken, files of newer ones are refused and stay as they are."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dynamod.features.responses.store import FILE, FORMAT, ResponseStore
from dynamod.message.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kept"
    made.mkdir(mode=0o700)
    return made


def version(folder: Path, wanted: int | None = None) -> int:
    with closing(sqlite3.connect(folder / FILE)) as database:
        if wanted is not None:
            database.execute(f"PRAGMA user_version = {wanted}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        return int(found)


def test_responses_of_an_older_release_are_taken(folder: Path) -> None:
    ResponseStore(str(folder), 1 << 20)
    version(folder, 0)
    ResponseStore(str(folder), 1 << 20)
    assert version(folder) == FORMAT


def test_responses_of_a_newer_release_are_refused(folder: Path) -> None:
    ResponseStore(str(folder), 1 << 20)
    version(folder, FORMAT + 1)
    before = (folder / FILE).read_bytes()
    with pytest.raises(UserError, match=rf"responses_dir: .*{FILE} has format {FORMAT + 1}") as raised:
        ResponseStore(str(folder), 1 << 20)
    assert "start the release that wrote it" in raised.value.hint
    assert (folder / FILE).read_bytes() == before
