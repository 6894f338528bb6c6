"""Folders of blocks that no worker has: removed when they are old or in the way, and never those of a live worker."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.features.tiers.files import BlockFiles, lock
from dynamod.features.tiers.opening import TierStores
from dynamod.features.tiers.unowned import RESTART, UNUSED, remove_unowned
from dynamod.kvcache.tier_settings import TierSettings


def used(folder: Path, layout: str, ago: float, *, close: bool = True) -> BlockFiles:
    """The folder of a worker with two blocks, last used so many seconds ago."""
    files = BlockFiles(folder, layout)
    for name in (1, 1 << 60):
        files.write(name, bytes(5000))
    if close:
        files.close()
    at = time.time() - ago
    for path in (*files.path.rglob("*"), files.path):
        os.utime(path, (at, at))
    return files


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BlockFiles]:
    """Of the worker that looks."""
    files = used(tmp_path, "own", UNUSED + 1, close=False)
    yield files
    files.close()


def test_what_was_not_used_for_long_goes(tmp_path: Path, own: BlockFiles) -> None:
    old, recent = used(tmp_path, "old", UNUSED + 60), used(tmp_path, "recent", UNUSED - 60)
    assert remove_unowned(tmp_path, 0) == 1
    assert names(tmp_path) == {own.path.name, recent.path.name}
    assert not old.path.exists()
    assert len(own.scan()) == 2
    again = BlockFiles(tmp_path, "old")
    assert again.scan() == []
    again.close()


def test_a_block_that_was_read_keeps_its_folder(tmp_path: Path) -> None:
    files = used(tmp_path, "old", UNUSED + 60, close=False)
    files.read(1)
    files.close()
    assert remove_unowned(tmp_path, 0) == 0


def test_the_longest_unused_make_room_but_none_whose_worker_may_come_back(
    tmp_path: Path, own: BlockFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = {"a": 4 * RESTART, "b": 3 * RESTART, "c": 2 * RESTART, "d": RESTART / 2}
    paths = {name: used(tmp_path, name, ago).path for name, ago in ages.items()}

    def free(_folder: Any) -> Any:
        gone = sum(not path.exists() for path in paths.values())
        return SimpleNamespace(free=1000 + 100 * gone)

    monkeypatch.setattr(shutil, "disk_usage", free)
    assert remove_unowned(tmp_path, 1000) == 0
    assert remove_unowned(tmp_path, 1150) == 2
    assert names(tmp_path) == {paths["c"].name, paths["d"].name, own.path.name}
    assert remove_unowned(tmp_path, 10**6) == 1
    assert names(tmp_path) == {paths["d"].name, own.path.name}


def test_the_folder_of_another_process_stays(tmp_path: Path) -> None:
    script = f"""
        import os, sys, time
        from pathlib import Path
        from dynamod.features.tiers.files import BlockFiles
        files = BlockFiles(Path({str(tmp_path)!r}), "theirs")
        files.write(1, b"block")
        for path in (*files.path.rglob("*"), files.path):
            os.utime(path, (1, 1))
        print("ready", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert remove_unowned(tmp_path, 1 << 60) == 0
        process.kill()
    assert remove_unowned(tmp_path, 0) == 1, "a worker that was killed has no lock"
    assert names(tmp_path) == set()


def test_only_files_of_blocks_are_removed(tmp_path: Path) -> None:
    files = used(tmp_path, "old", UNUSED + 60)
    strange = files.path / "00" / "notes.txt"
    strange.write_text("not ours")
    for name in ("notes", "0" * 32, "x" * 32 + ".0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("not ours")
    elsewhere = used(tmp_path.parent / f"{tmp_path.name}-elsewhere", "other", UNUSED + 60)
    (tmp_path / ("0" * 32 + ".1")).symlink_to(elsewhere.path)
    for path in (strange, strange.parent, files.path):
        os.utime(path, (1, 1))
    assert remove_unowned(tmp_path, 1 << 60) == 0
    assert strange.read_text() == "not ours"
    assert list(files.path.rglob("*.kv")) == []
    assert len(list(elsewhere.path.rglob("*.kv"))) == 2
    assert all((tmp_path / name / "file").exists() for name in ("notes", "0" * 32, "x" * 32 + ".0"))


def test_a_folder_that_is_removed_while_it_is_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = used(tmp_path, "layout", 0)
    real = os.open

    def removing(path: Any, *rest: Any) -> int:
        """Somebody removes the lock between its opening and its locking."""
        handle = real(path, *rest)
        os.unlink(path)
        return handle

    monkeypatch.setattr(os, "open", removing)
    assert lock(files.path) is None


async def test_a_worker_that_begins_looks(tmp_path: Path) -> None:
    old = used(tmp_path, "old", UNUSED + 60)
    settings = TierSettings(kv_disk_gb=0.001, kv_disk_path=str(tmp_path))
    tiers = await TierStores().open(settings, "layout", lambda _event: None)
    assert tiers is not None
    assert not old.path.exists()
    await tiers.close()
