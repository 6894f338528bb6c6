"""Blocks of prompts that come damaged, late, of others or not at all: the answer is the same, and nothing is left."""

import importlib.util
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .block_ways import (
    BlockWay,
    Damaged,
    Detour,
    Ended,
    Exchanged,
    Fault,
    Late,
    SharedWay,
    Stalled,
    Tampered,
    TcpWay,
    Truncated,
)
from .disagg import LONG, SLOW, handoffs, serve, sessions

LEASE = 2.0
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mocker": {**SLOW, "kv_bytes_per_token": 32768},
    "llamacpp": {"block_size": 16, "flash_attn": "off", "split_tail": True, "n_threads": 1},
}
PROMPTS = [f"{number} {LONG[:600]}" for number in range(20)]


class Pools:
    """A prefill and a decode worker, and the answers of a worker that is alone."""

    def __init__(self, machine: Any, engine: str) -> None:
        self.machine, self.engine = machine, engine
        given = {"engine": engine, "arguments": ARGUMENTS[engine], "DYNAMOD_HEARTBEAT_TIMEOUT": "20"}
        alone = serve(machine, "--Processor.remote-prefill=false", "--name=alone", **given)
        url = alone.ready()
        self._fresh = iter([(prompt, machine.chat(url, prompt, max_tokens=12)) for prompt in PROMPTS])
        alone.end()
        self.command = serve(
            machine, f"--PrefillWorker.session_lease={LEASE}", "--Processor.max-prefill-queue-size=9", **given
        )
        self.url = self.command.ready()
        [path] = machine.folder.glob("d.sock.d/*/*PrefillWorker*.sock")
        self.detour = Detour(path)

    def ask(self, way: BlockWay | None = None, meanwhile: Callable[[], object] = lambda: None) -> None:
        """A prompt that nobody has seen, over a way of its own; its answer is right."""
        prompt, expected = next(self._fresh)
        self.detour.way = way
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.machine.chat, self.url, prompt, max_tokens=12)
            meanwhile()
            assert answer.result() == expected

    def two(self, way: BlockWay) -> None:
        """Two at the same time."""
        both = [next(self._fresh) for _ in range(2)]
        self.detour.way = way
        assert self.machine.chats(self.url, [prompt for prompt, _ in both], max_tokens=12) == [one for _, one in both]

    def pid(self, component: str) -> int:
        return int(self.machine.row(component)["pid"])

    def nothing_left(self) -> None:
        """No session, no block, no connection and no memory of one."""
        found = sessions(self.machine)
        assert (found["open"], found["held_bytes"]) == (0, 0), found
        pids = [self.pid(name) for name in ("PrefillWorker", "Worker")]
        self.machine.until(lambda: not any(mapped(pid) for pid in pids), 5)


def mapped(pid: int) -> int:
    """Rings that a process has in its memory."""
    return len(re.findall("dynamod-blocks", Path(f"/proc/{pid}/maps").read_text()))


@pytest.fixture(scope="module", params=["mocker", "llamacpp"])
def pools(shared: Any, request: pytest.FixtureRequest) -> Iterator[Pools]:
    if request.param == "llamacpp" and importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs the extra llama_cpp")
    pools = Pools(shared, request.param)
    try:
        pools.ask()
        assert handoffs(shared)["transfers"] == 1
        yield pools
    finally:
        pools.detour.close()
        pools.command.end()


Case = tuple[type[BlockWay], Callable[[], Fault], str]
TCP: list[Case] = [(TcpWay, Damaged, "damaged"), (TcpWay, Truncated, "damaged"), (TcpWay, Ended, "short")]
TCP += [(TcpWay, Stalled, "stalled"), (TcpWay, lambda: Late(LEASE + 1), "gone")]
SHARED: list[Case] = [(SharedWay, fault, counted) for _, fault, counted in TCP if counted != "stalled"]
TAMPERED: Case = (SharedWay, Tampered, "damaged")
on_mockers = pytest.mark.parametrize("pools", ["mocker"], indirect=True)


def fails(pools: Pools, case: Case, folder: Path) -> None:
    """A transfer that goes wrong."""
    before, (kind, fault, counted) = handoffs(pools.machine), case
    expired = sessions(pools.machine)["expired"]
    way = kind(folder, fault())
    if kind is TcpWay and pools.engine == "mocker":
        way.at = 1_200_000  # its blocks are large, so that not all of a prompt can be under way
    try:
        began = time.monotonic()
        pools.ask(way)
        assert time.monotonic() - began < 15
        assert way.fault.reached.is_set()
        after = handoffs(pools.machine)
        assert after["failures"] == {**before["failures"], counted: before["failures"].get(counted, 0) + 1}
        assert after["transfers"] == before["transfers"]
        if fault is not Tampered:  # that may meet blocks which have come and are not read
            assert (after["blocks"] > before["blocks"]) == (counted != "gone"), "what has come before is used"
        assert sessions(pools.machine)["expired"] == expired + (counted in ("gone", "stalled"))
        pools.nothing_left()
    finally:
        way.close()


@pytest.mark.parametrize("case", [*TCP, TAMPERED])
def test_blocks_that_do_not_come_whole(pools: Pools, case: Case, tmp_path: Path) -> None:
    fails(pools, case, tmp_path)


@on_mockers
@pytest.mark.parametrize("case", SHARED)
def test_the_same_inside_a_node(pools: Pools, case: Case, tmp_path: Path) -> None:
    fails(pools, case, tmp_path)


def test_blocks_of_another_request(pools: Pools, tmp_path: Path) -> None:
    """They are whole, and their checksums are right."""
    before, way = handoffs(pools.machine)["failures"], TcpWay(tmp_path, Exchanged())
    try:
        pools.two(way)
        assert way.fault.reached.is_set()
        after = handoffs(pools.machine)["failures"]
        refused, gone = (after.get(kind, 0) - before.get(kind, 0) for kind in ("refused", "gone"))
        assert (refused + gone, refused > 0) == (2, True), "one may have been answered before the other came to read"
        pools.nothing_left()
    finally:
        way.close()


def stops(pools: Pools, component: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One side stops for a while in the middle of a transfer, and its daemon does not notice; what was read then."""
    way, pid = TcpWay(folder, Stalled()), pools.pid(component)

    def meanwhile() -> None:
        assert way.fault.reached.wait(20)
        os.kill(pid, signal.SIGSTOP)
        way.fault.over.set()
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    try:
        pools.ask(way, meanwhile)
        after = handoffs(pools.machine)
        pools.machine.until(lambda: sessions(pools.machine)["open"] == 0, 5)
        pools.nothing_left()
    finally:
        way.close()
    pools.ask()
    assert handoffs(pools.machine)["transfers"] == after["transfers"] + 1, "the way is free again"
    return after


@on_mockers
def test_the_prefill_worker_stops_while_it_is_read(pools: Pools, tmp_path: Path) -> None:
    """Its reader waits five seconds."""
    before = handoffs(pools.machine)["failures"]
    after = stops(pools, "PrefillWorker", 8, tmp_path)
    assert after["failures"] == {**before, "stalled": before.get("stalled", 0) + 1}


def test_the_answering_worker_stops_while_it_reads(pools: Pools, tmp_path: Path) -> None:
    """The blocks wait for it as long as the lease lasts."""
    before, expired = handoffs(pools.machine), sessions(pools.machine)["expired"]
    after = stops(pools, "Worker", LEASE + 1, tmp_path)
    assert sessions(pools.machine)["expired"] == expired + 1
    # all of a prompt of llama.cpp may have been under way: it is smaller than what may be sent ahead
    assert after["transfers"] + after["failed"] == before["transfers"] + before["failed"] + 1
