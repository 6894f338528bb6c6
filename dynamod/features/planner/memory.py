"""How many more workers the memory budget of a node has room for."""

from collections.abc import Callable, Mapping

import msgspec

from dynamod.message.pools import Pool
from dynamod.observe.memory import resident


class MemoryBudget:
    """`limit`: bytes of the workers of all pools on a node. A worker takes what the largest of its pool has taken.

    What a pool's workers take is known when one of them is ready: until then it gets one at a time. `memory`: bytes of
    a process and its descendants; it is asked on the node of the processes.
    """

    def __init__(self, limit: int, memory: Callable[[int], int] = resident) -> None:
        self.limit, self._memory = limit, memory
        self._each: dict[str, int] = {}  # by component, what a worker takes

    def bound(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The pools of a node, by component, with as many `free` places as there is memory for."""
        left = self.limit
        for name, pool in pools.items():
            takes = [(one.state, self._memory(one.pid) if one.pid else 0) for one in pool.replicas]
            largest = max((memory for state, memory in takes if state == "Ready"), default=0)
            self._each[name] = each = largest or self._each.get(name, 0)
            left -= sum(max(memory, each) for _, memory in takes)
        found: dict[str, Pool] = {}
        for name, pool in pools.items():
            each = self._each[name]
            room = max(0, left) // each if each else int(left > 0 and not pool.replicas)
            free = room if pool.free is None else min(room, pool.free)
            found[name] = msgspec.structs.replace(pool, free=free)
        return found
