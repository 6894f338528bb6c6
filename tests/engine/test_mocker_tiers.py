"""Tiers of the mocker: what a load costs, that nobody waits for another's, and what routers are told."""

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.engine.mocker.arguments import MockerArguments, arguments_of
from dynamod.engine.mocker.scheduler import LOOK, Scheduler, Sequence
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.tiers.opening import TierStores
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.kv_events import Removed, TierRemoved, TierStored

LATER = TIMINGS["later"]
BLOCK = {"block_size": 4, "watermark": 0, "kv_bytes_per_token": 1000}
"""4,000 bytes."""
MS = {"host_gbps": 0.004, "disk_gbps": 0.0004}
"""One millisecond a block from the host, ten from the disk."""


class Machine:
    """A scheduler and the time of its steps."""

    def __init__(self, **arguments: Any) -> None:
        given = MockerArguments(**{"num_gpu_blocks": 12, **BLOCK, **MS, **arguments})
        self.below: set[int] = set()
        self.tiers = TierStores().simulated(given, lambda _event: None)
        self.it = Scheduler(given, LATER, tiers=self.tiers)
        self.now = 0.0
        self.first: dict[Any, float] = {}

    def ask(self, name: int, length: int = 40, output: int = 1, owner: str = "") -> Sequence:
        blocks = [1000 * name + index for index in range(length // 4)]
        one = Sequence(owner or name, blocks, length, output, lambda index: 1000 * name + index)
        self.it.add(one)
        return one

    def step(self) -> None:
        step = self.it.step()
        self.now += step.ms
        for one in step.tokens:
            self.first.setdefault(one.owner, self.now)

    def run(self) -> float:
        """Milliseconds until all are over."""
        begin = self.now
        for _ in range(100_000):
            if self.it.idle:
                return self.now - begin
            self.step()
        raise AssertionError("it never ends")


@pytest.mark.parametrize(("tier", "ms"), [("kv_host_gb", 1.0), ("kv_disk_gb", 10.0)])
def test_a_prefix_that_fell_out_takes_the_time_of_its_load(tier: str, ms: float) -> None:
    machine = Machine(**{tier: 1e-3})
    for name in (1, 1, 2):
        machine.ask(name)
        machine.run()
    one = machine.ask(1)
    assert machine.it.uncached(one.blocks, 40) == 0
    here = machine.it.pool.cached_prefix(one.blocks)
    assert machine.run() == pytest.approx((10 - here) * ms + LATER.prefill_ms(1), abs=1e-6)
    assert one.cached == 40
    assert machine.it.pool.active == 0


def test_a_block_is_copied_when_it_was_asked_for_twice() -> None:
    machine = Machine(kv_host_gb=1e-3)
    assert machine.tiers is not None
    for name, wanted in ((1, 0), (2, 0), (1, 10), (3, 10), (2, 20)):
        machine.ask(name)
        machine.run()
        assert len(machine.tiers.levels[0].names()) == wanted
    assert Machine(kv_host_gb=1e-3, kv_offload_after=1).tiers is not None


def test_answers_go_down_with_every_block() -> None:
    machine = Machine(kv_host_gb=1e-3, kv_offload_after=1)
    assert machine.tiers is not None
    machine.ask(1, 8, output=9)
    machine.run()
    assert set(machine.tiers.levels[0].names()) == {1000, 1001, 1002, 1003}


def test_others_run_meanwhile_and_a_new_one_hardly_waits() -> None:
    machine = Machine(num_gpu_blocks=40, kv_disk_gb=1e-3, kv_offload_after=1)
    for name in range(1, 6):
        machine.ask(name)
        machine.run()
    begin = machine.now
    machine.ask(1, owner="loads")
    machine.step()
    assert machine.now == begin + LOOK
    other = machine.ask(9, 4, output=30)
    machine.step()
    assert other.generated == 1
    machine.run()
    assert 90 < machine.first["loads"] - begin < 150
    assert other.generated == 30


def test_a_tier_loads_one_block_at_a_time() -> None:
    machine = Machine(num_gpu_blocks=100, kv_disk_gb=1e-3, kv_offload_after=1)
    for name in range(1, 12):
        machine.ask(name)
        machine.run()
    begin = machine.now
    machine.ask(1)
    assert machine.it.pool.cached_prefix([1000]) == 0
    machine.ask(2, owner="second")
    machine.it.pool.forget([one for one in machine.it.pool.names() if one // 1000 == 2])
    machine.run()
    assert machine.first["second"] - begin >= 200


def test_files_are_in_the_host_too_once_they_were_loaded() -> None:
    machine = Machine(kv_disk_gb=1e-3, kv_host_gb=10 * 4000 / 1e9, kv_offload_after=1)
    assert machine.tiers is not None
    host, disk = machine.tiers.levels
    for name in (1, 2):
        machine.ask(name)
        machine.run()
    assert {name // 1000 for name in host.names()} == {2}
    machine.ask(1)
    machine.run()
    assert {name // 1000 for name in host.names()} == {1}
    assert (disk.loaded, host.loaded) == (9, 0)
    assert disk.load_seconds == pytest.approx(0.09)


def test_who_leaves_while_it_waits_gives_all_back() -> None:
    machine = Machine(kv_disk_gb=1e-3, kv_offload_after=1)
    for name in (1, 2):
        machine.ask(name)
        machine.run()
    one = machine.ask(1)
    machine.step()
    assert machine.it.pool.active == 10, "it has its room already"
    machine.it.remove(one)
    machine.it.remove(one)
    assert machine.it.idle
    assert machine.it.pool.active == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 8)), min_size=5, max_size=40),
    *(st.integers(13, 20), st.integers(1, 3), st.integers(0, 60_000), st.integers(0, 200_000), st.randoms()),
)
def test_all_get_their_tokens_and_nothing_is_left(
    prompts: list[tuple[int, int, int]], blocks: int, enough: int, host: int, disk: int, chance: Any
) -> None:
    machine = Machine(num_gpu_blocks=blocks, kv_host_gb=host / 1e9, kv_disk_gb=disk / 1e9, kv_offload_after=enough)
    left, asked = set(), []
    for name, length, output in prompts:
        asked.append(machine.ask(name, length, output))
        for _ in range(chance.randrange(6)):
            if not machine.it.idle:
                machine.step()
        if chance.random() < 0.2:
            one = chance.choice(asked)
            machine.it.remove(one)
            left.add(id(one))
        assert machine.it.pool.active <= blocks
    machine.run()
    assert all(one.generated == one.max_tokens for one in asked if id(one) not in left)
    assert machine.it.pool.active == 0
    for level in machine.tiers.levels if machine.tiers is not None else ():
        assert level.used == 4000 * len(level.names()) <= level.most


@virtual
async def test_routers_are_told_of_tiers(words: Any) -> None:
    async with System() as system:
        arguments = {"kv_host_gb": 1e-3, "kv_offload_after": 1, "num_gpu_blocks": 12, **BLOCK, **MS}
        house = await words.mocker(system, **arguments)
        feed = house.subscribe()
        prompt = list(range(40))
        names = block_hashes(tokens.pack(prompt), 4)
        for ids in (prompt, list(range(100, 140)), prompt):
            await house.ask(words.generate(ids, max_tokens=1)).wait()
        await asyncio.sleep(0.1)
        events = [event for item in feed.news for event in item]
        told = [event for event in events if isinstance(event, TierStored)]
        assert {name for event in told for name in event.blocks} >= set(names)
        assert not any(isinstance(event, TierRemoved) for event in events)
        gone = next(number for number, event in enumerate(events) if isinstance(event, Removed))
        assert all(events.index(event) < gone for event in told if event.blocks[0] in names)
        second = house.subscribe()
        await asyncio.sleep(0.1)
        again = [event for item in second.news for event in item]
        [below] = [event for event in again if isinstance(event, TierStored)]
        assert (below.medium, len(below.blocks)) == ("CPU_PINNED", 20)
        statistics: Any = house.statistics.engine
        assert (statistics.host_tier.blocks, statistics.disk_tier) == (20, None)
        assert statistics.host_tier.loaded == 9
        load = house.workers[-1]._engine.load()
        assert (load.prefill_ms, load.host_ms, load.disk_ms) == (0.062, 1.0, 10.0)


def test_settings() -> None:
    assert arguments_of({"kv-host-gb": 2, "kv_disk_gb": 1e5}).tiered, "nothing is really kept"
    with pytest.raises(UserError, match="enable_prefix_caching: off, but tiers"):
        arguments_of({"kv_host_gb": 2, "enable_prefix_caching": False})
    with pytest.raises(UserError, match="host_gbps"):
        arguments_of({"host_gbps": 0})
