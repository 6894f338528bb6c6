"""The processes of the pools on the planner's node, as the daemon or another manager reports them."""

import logging
from collections.abc import Mapping

from dynamod.message.errors import DynamodError
from dynamod.message.pools import Pool

from .connectors import Connector
from .memory import MemoryBudget
from .memos import PlannerMemos
from .pool import PlannedPool

log = logging.getLogger("dynamod.planner")


class PoolStates:
    """`memory`: bytes that workers may take; 0: no limit."""

    def __init__(self, connector: Connector, memos: PlannerMemos, memory: int | None) -> None:
        self._connector, self.memos = connector, memos
        self._memory = MemoryBudget(memory) if memory else None
        self._wrong = ""  # the last trouble

    async def look(self, pools: Mapping[str, PlannedPool]) -> dict[str, Pool] | None:
        """The processes of each pool that has some here; None while the manager does not answer."""
        found: dict[str, Pool] = {}
        try:
            await self.memos.exchange()
            for name, pool in pools.items():
                if (state := await self._connector.pool(name, pool.workers)) is not None:
                    found[name] = state
        except (DynamodError, TimeoutError) as error:
            wrong = f"nothing is planned: {error or 'no answer'}"
            if wrong != self._wrong:
                log.warning("%s", wrong)
            self._wrong = wrong
            return None
        self._wrong = ""
        return self._memory.bound(found) if self._memory is not None else found
