"""What people have done to the pools of a planner, kept by the daemon: the planner that is started next knows it."""

import logging
from collections.abc import Callable, Iterable

from dynamod.message.errors import UserError
from dynamod.runtime.components.processes import Processes

from .pool import PlannedPool
from .records import PlannerMemo, PoolControl

log = logging.getLogger("dynamod.planner")


class PlannerMemos:
    """`instruct(component, control)`: has the planners of other nodes know what was asked of the one before us."""

    def __init__(
        self, processes: Processes, pools: Iterable[PlannedPool], instruct: Callable[[str, PoolControl], None]
    ) -> None:
        self._processes, self._pools, self._instruct = processes, pools, instruct
        self._kept: dict[str, PlannerMemo] = {}

    async def exchange(self) -> None:
        """Read what there is when a pool is looked at first, later keep what has changed.

        Raises DynamodError, TimeoutError.
        """
        for pool in self._pools:
            if pool.component not in self._kept:
                memo = await self._processes.memo(pool.component, PlannerMemo)
                self._kept[pool.component] = memo
                self._recall(pool, memo)
            elif (memo := PlannerMemo(control=pool.control, manual=pool.reconciler.manual)) != self._kept[
                pool.component
            ]:
                await self._processes.keep(pool.component, memo)
                self._kept[pool.component] = memo

    def _recall(self, pool: PlannedPool, memo: PlannerMemo) -> None:
        if memo.control.at > pool.control.at:
            try:
                pool.obey(memo.control)
            except UserError as error:  # a reload has set other limits
                log.warning("%s", error)
            self._instruct(pool.component, memo.control)
        if memo.manual and pool.control.resumed <= memo.control.resumed:
            pool.reconciler.take_over("manual")
