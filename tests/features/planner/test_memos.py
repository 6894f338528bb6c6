"""What people have asked of a planner outlives it, with the daemon."""

import pytest

from dynamod.features.planner.memos import PlannerMemos
from dynamod.features.planner.pool import PlannedPool
from dynamod.features.planner.records import PlannerMemo, PoolControl
from dynamod.features.planner.settings import PlannerSettings
from dynamod.message.errors import DynamodError

PAUSED = PoolControl(at=5.0, paused=True, least=2, most=3)


class Daemon:
    """Keeps the memos; away while `away`."""

    def __init__(self) -> None:
        self.memos: dict[str, PlannerMemo] = {}
        self.writes, self.away = 0, False

    async def memo(self, component: str, kind: type[PlannerMemo]) -> PlannerMemo:
        if self.away:
            raise DynamodError("the daemon is away")
        return self.memos.get(component, kind())

    async def keep(self, component: str, memo: PlannerMemo) -> None:
        if self.away:
            raise DynamodError("the daemon is away")
        self.memos[component] = memo
        self.writes += 1


def planner(daemon: Daemon) -> tuple[PlannedPool, PlannerMemos, dict[str, PoolControl]]:
    """A planner that starts: its pool, and what it tells those of other nodes."""
    pool, told = PlannedPool("Worker", "decode", PlannerSettings(max_gpu_budget=4)), dict[str, PoolControl]()
    return pool, PlannerMemos(daemon, [pool], told.__setitem__), told  # type: ignore[arg-type]


async def test_the_next_planner_knows_what_was_asked_and_others_learn_it() -> None:
    daemon = Daemon()
    pool, memos, told = planner(daemon)
    await memos.exchange()
    assert (daemon.writes, told) == (0, {})
    pool.obey(PAUSED)
    pool.reconciler.manual = True
    for _ in range(3):
        await memos.exchange()
    assert daemon.writes == 1, "nothing is said again"
    pool, memos, told = planner(daemon)
    await memos.exchange()
    assert (pool.control, pool.reconciler.manual, told) == (PAUSED, True, {"Worker": PAUSED})
    assert (pool.status()["state"], pool.status()["min"], pool.status()["max"]) == ("paused", 2, 3)


async def test_what_was_asked_of_the_new_one_counts_more() -> None:
    daemon = Daemon()
    daemon.memos["Worker"] = PlannerMemo(control=PAUSED, manual=True)
    pool, memos, told = planner(daemon)
    pool.obey(now := PoolControl(at=6.0, resumed=6.0, least=1, most=2))
    for _ in range(2):
        await memos.exchange()
    assert (pool.control, pool.status()["state"], told) == (now, "active", {})
    assert daemon.memos["Worker"] == PlannerMemo(control=now)


async def test_limits_that_a_reload_forbids_are_left_out() -> None:
    daemon = Daemon()
    daemon.memos["Worker"] = PlannerMemo(control=PoolControl(at=1.0, paused=True, least=9))
    pool, memos, _ = planner(daemon)
    await memos.exchange()
    assert (pool.status()["state"], pool.status()["min"]) == ("paused", 1)


async def test_a_daemon_that_is_away_is_asked_again() -> None:
    daemon = Daemon()
    daemon.memos["Worker"] = PlannerMemo(control=PAUSED)
    daemon.away = True
    pool, memos, _ = planner(daemon)
    with pytest.raises(DynamodError):
        await memos.exchange()
    assert pool.status()["state"] == "active"
    daemon.away = False
    await memos.exchange()
    assert pool.status()["state"] == "paused"
    daemon.away = True
    pool.obey(PoolControl(at=7.0, resumed=7.0))
    with pytest.raises(DynamodError):
        await memos.exchange()
    daemon.away = False
    await memos.exchange()
    assert daemon.memos["Worker"].control.at == 7.0
