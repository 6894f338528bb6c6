"""What a reload reads its file with."""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from dynamod.daemon.reload import Wanted, reloader
from dynamod.observe.memory import resident, returned


def _runner(pid: int, **how: Any) -> Any:
    return SimpleNamespace(kept=False, session="", processes=lambda: [SimpleNamespace(pid=pid)], **how)


async def test_what_running_workers_hold_counts_as_free() -> None:
    """Tiers that are full are no reason to refuse a file that has them too: who holds them ends first."""
    seen: list[int] = []
    stopped: list[str] = []

    def read() -> Sequence[Wanted]:
        seen.append(returned())
        return []

    async def stop(name: str) -> None:
        stopped.append(name)

    kept = _runner(os.getppid())
    kept.kept = True
    running = {"own": _runner(os.getpid()), "kept": kept}
    node: Any = SimpleNamespace(graphs=SimpleNamespace(running=running, failed={}, stop=stop))
    await reloader(read)(node, 1.0)
    holds = resident(os.getpid(), own=True)
    assert 0.8 * holds < seen[0] <= 1.2 * holds
    assert stopped == ["own"]
    assert returned() == 0
