"""Blocks that go down the tiers and come back, with real files: order, bounds, faults of the disk."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.features.tiers.disk import PENDING, DiskLevel
from dynamod.features.tiers.files import BlockFiles
from dynamod.features.tiers.opening import TierStores
from dynamod.features.tiers.store import AHEAD, Loading, Tiers
from dynamod.kvcache.tier_settings import TierSettings, free_memory, with_environment
from dynamod.message.errors import UserError
from dynamod.message.kv_events import TierEvent, TierRemoved, TierStored

SIZE = 10_000


def content(name: int) -> bytes:
    return name.to_bytes(2, "little") * (SIZE // 2)


class Opened:
    """Tiers of one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.events: list[TierEvent] = []
        self.all: list[Tiers] = []

    async def open(self, host: int = 0, disk: int = 0, enough: int = 1) -> Tiers:
        settings = TierSettings(
            kv_host_gb=host * SIZE / 1e9,
            kv_disk_gb=disk * 12288 / 1e9,
            kv_disk_path=str(self._folder),
            kv_offload_after=enough,
        )
        tiers = await TierStores().open(settings, "layout", self.events.append)
        assert tiers is not None
        self.all.append(tiers)
        return tiers


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    found = Opened(tmp_path / "kv")
    yield found
    for tiers in found.all:
        await tiers.close()


def disk(tiers: Tiers) -> DiskLevel:
    level = tiers.levels[-1]
    assert isinstance(level, DiskLevel)
    return level


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def put(tiers: Tiers, names: range) -> None:
    for name in names:
        tiers.put(name, SIZE, content(name))
    await until(lambda: not disk(tiers)._pending)


async def load(tiers: Tiers, names: list[int]) -> list[int]:
    """The names that come, with the right bytes."""
    arrived = asyncio.Event()
    loading, found = Loading(tiers, names, arrived.set), list[int]()
    async with asyncio.timeout(10):
        while not loading.over:
            arrived.clear()
            block = loading.take()
            if block is not None:
                assert block.data == content(block.name)
                found.append(block.name)
            elif not loading.over:
                await arrived.wait()
    return found


async def test_what_fell_out_of_the_host_comes_from_files_and_is_in_the_host_then(opened: Opened) -> None:
    tiers = await opened.open(host=5, disk=30)
    await put(tiers, range(20))
    assert tiers.found(range(30)) == 20
    assert tiers.levels[0].names() == tuple(range(15, 20))
    assert await load(tiers, list(range(10, 22))) == list(range(10, 20))
    assert tiers.levels[0].names() == tuple(range(10, 15))
    host, files = tiers.statistics("CPU_PINNED"), tiers.statistics("DISK")
    assert host is not None
    assert files is not None
    assert (files.stored, files.blocks, files.dropped, files.failed) == (20, 20, 0, 0)
    assert (host.loaded, files.loaded) == (5, 5)


async def test_a_block_is_told_in_the_files_before_it_leaves_the_host(opened: Opened) -> None:
    tiers = await opened.open(host=5, disk=30)
    for name in range(20):
        await put(tiers, range(name, name + 1))
    for name in range(15):
        stored = opened.events.index(TierStored("DISK", (name,)))
        assert stored < opened.events.index(TierRemoved("CPU_PINNED", (name,)))


async def test_files_are_found_by_the_next_worker_with_their_order(opened: Opened) -> None:
    tiers = await opened.open(disk=10)
    await put(tiers, range(12))
    assert disk(tiers).names() == tuple(range(2, 12))
    await asyncio.sleep(0.02)
    assert await load(tiers, [2, 3]) == [2, 3]
    await tiers.close()
    opened.all.clear()
    opened.events.clear()
    again = await opened.open(disk=9)
    assert disk(again).names() == (*range(5, 12), 2, 3), "of them the least recently used one has gone"
    assert opened.events == [TierStored("DISK", (*range(4, 12), 2, 3)), TierRemoved("DISK", (4,))]
    assert again.snapshot() == (TierStored("DISK", (*range(5, 12), 2, 3)),)
    assert await load(again, [2, 5, 6]) == [2, 5, 6]
    await until(lambda: len(list(disk(again)._files.path.rglob("*.kv"))) == 9)


async def test_blocks_go_down_when_they_were_asked_for_often_enough(opened: Opened) -> None:
    tiers = await opened.open(host=50, enough=2)
    tiers.ask([1, 2, 3])
    assert not any(map(tiers.wants, range(5)))
    tiers.ask([1, 2, 4])
    assert [tiers.wants(name) for name in range(5)] == [False, True, True, False, False]
    tiers.put(1, SIZE, content(1))
    assert not tiers.wants(1)


async def test_the_end_of_a_prompt_leaves_before_its_beginning(opened: Opened) -> None:
    tiers = await opened.open(host=4)
    for name in range(4):
        tiers.put(name, SIZE, content(name))
    tiers.ask([0, 1, 2, 3])
    tiers.put(9, SIZE, content(9))
    assert tiers.found([0, 1, 2, 3]) == 3


@pytest.mark.parametrize("fault", ["damaged", "truncated", "gone"])
async def test_what_is_wrong_in_a_file_is_not_loaded_nor_what_follows(opened: Opened, fault: str) -> None:
    tiers = await opened.open(disk=100)
    await put(tiers, range(40))
    [path] = disk(tiers)._files.path.rglob(f"{5:016x}.kv")
    data = path.read_bytes()
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if fault == "truncated" else data[:500] + b"?" + data[501:])
    assert await load(tiers, list(range(40))) == list(range(5))
    files = tiers.statistics("DISK")
    assert files is not None
    assert (files.failed, files.blocks) == (1, 39)
    assert TierRemoved("DISK", (5,)) in opened.events
    assert tiers.found(range(40)) == 5


async def test_a_disk_that_cannot_be_written_is_counted_and_left_alone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = await opened.open(host=50, disk=100)

    def full(_name: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk(tiers)._files, "write", full)
    await put(tiers, range(1))
    await put(tiers, range(1, 10))
    files = tiers.statistics("DISK")
    assert files is not None
    assert (files.failed, files.refused, files.blocks) == (1, 9, 0)
    assert len([one for one in caplog.records if "No space left" in one.getMessage()]) == 1
    assert tiers.found(range(10)) == 10, "the host has them"


async def test_a_slow_disk_holds_up_nobody_and_no_memory(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = await opened.open(disk=100_000)
    await put(tiers, range(3))
    free = threading.Event()
    files = disk(tiers)._files
    for name in ("write", "read"):
        real = getattr(files, name)

        def slow(*given: Any, real: Any = real) -> Any:
            free.wait(10)
            return real(*given)

        monkeypatch.setattr(files, name, slow)
    arrived = asyncio.Event()
    loading = Loading(tiers, [0, 1, 2], arrived.set)
    assert loading.take() is None
    assert not loading.over
    loading.give_up()
    loading.give_up()
    assert (loading.over, loading.take()) == (True, None)
    assert tiers.found([0, 1, 2]) == 0, "nobody else waits for it now"
    big = bytes(PENDING // 4)
    for name in range(10, 20):
        tiers.put(name, len(big), big)
    found = tiers.statistics("DISK")
    assert found is not None
    assert (found.late, found.refused) == (1, 6)
    free.set()
    await until(lambda: disk(tiers)._waiting == 0)
    assert 13 in disk(tiers)
    assert 14 not in disk(tiers)


async def test_no_more_is_read_ahead_than_is_taken_soon(opened: Opened) -> None:
    tiers = await opened.open(disk=1000)
    await put(tiers, range(100))
    loading = Loading(tiers, list(range(100)), lambda: None)
    await until(lambda: disk(tiers).loaded == AHEAD)
    await asyncio.sleep(0.02)
    assert disk(tiers).loaded == AHEAD
    assert loading.take() is not None
    await until(lambda: disk(tiers).loaded == AHEAD + 1)


async def test_two_workers_share_a_folder(opened: Opened) -> None:
    first, second = await opened.open(disk=10), await opened.open(disk=10)
    await put(first, range(5))
    assert second.found([0]) == 0
    await put(second, range(5))
    assert await load(second, [0, 1]) == [0, 1]


def test_settings_for_which_there_is_no_room(tmp_path: Path) -> None:
    assert TierSettings().problem() is None
    assert not TierSettings().tiered
    assert TierSettings(kv_host_gb=0.1, kv_disk_gb=0.1, kv_disk_path=str(tmp_path / "a" / "b")).problem() is None
    for value in (1e6, float("inf"), float("nan")):
        assert TierSettings(kv_host_gb=value).problem() is not None
        found = TierSettings(kv_disk_gb=value, kv_disk_path=str(tmp_path)).problem()
        assert found is not None
        assert found[0] == "kv_disk_gb"
    assert free_memory() > 1e6
    locked = tmp_path / "file"
    locked.write_text("")
    found = TierSettings(kv_disk_gb=0.1, kv_disk_path=str(locked / "below")).problem()
    assert found == ("kv_disk_path", f"{locked / 'below'} cannot be written")


def test_what_is_stored_already_counts_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BlockFiles(tmp_path, "layout")
    files.write(1, bytes(10**6))
    files.close()
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 100_000})())
    assert TierSettings(kv_disk_gb=0.001, kv_disk_path=str(tmp_path)).problem() is None
    assert TierSettings(kv_disk_gb=0.002, kv_disk_path=str(tmp_path)).problem() is not None


def test_the_originals_variables_count_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_KVBM_CPU_CACHE_GB", "2")
    monkeypatch.setenv("DYN_KVBM_DISK_CACHE_GB", "8.5")
    assert with_environment({"n_ctx": 5}) == {"n_ctx": 5, "kv_host_gb": 2.0, "kv_disk_gb": 8.5}
    assert with_environment({"kv-host-gb": 0, "kv_disk_gb": 1}) == {"kv-host-gb": 0, "kv_disk_gb": 1}
    monkeypatch.setenv("DYN_KVBM_CPU_CACHE_GB", "much")
    with pytest.raises(UserError, match="DYN_KVBM_CPU_CACHE_GB is 'much'"):
        with_environment({})
