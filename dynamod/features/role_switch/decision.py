"""Two pools that share their workers: which processes are in which, and when one changes its role. Pure.

A worker is in the pool of the role that it has, or is about to have, whichever component it was started as.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dynamod.features.planner.pool import Side
from dynamod.features.planner.reconcile import Action, Change, Pools, tokens
from dynamod.message.discovery import PREFILL, ModelCard
from dynamod.message.pools import Pool, Replica


def kind_of(role: str, home: str) -> str:
    """The pool of a worker: that of its role, or, while that is not known, that of its component."""
    return home if not role else PREFILL if role == PREFILL else "decode"


def by_role(kind: str, own: Pools, other: Pools, other_kind: str) -> Pools:
    """The processes that have a role, by node, of both components. No process is started as `other`."""
    found: dict[str, Pool] = {}
    for node in sorted(own.keys() | other.keys()):
        here = own.get(node) or Pool(replicas=(), free=0, alone=other[node].alone)
        guests = other[node].replicas if node in other else ()
        replicas = [one for one in here.replicas if kind_of(one.role, kind) == kind]
        replicas += [
            msgspec.structs.replace(one, guest=True) for one in guests if kind_of(one.role, other_kind) == kind
        ]
        counts = [pools[node].by_hand for pools in (own, other) if node in pools]
        by_hand = None if None in counts else sum(count or 0 for count in counts)
        found[node] = msgspec.structs.replace(here, replicas=tuple(replicas), by_hand=by_hand)
    return found


class Orders(NamedTuple):
    """What nodes are to run of a pool's own component, and of the other one."""

    own: dict[str, Change]
    other: dict[str, Change]


def orders(action: Action, pools: Pools, own: Pools, other: Pools) -> Orders:
    """An action on a pool by role, in processes of the components. `pools`: as `by_role` has them."""
    found = Orders({}, {})
    for node, change in action.changes.items():
        leave, guests = change.leave, change.guests
        more = change.replicas - pools[node].wanted + len(leave) + len(guests)
        if more or leave:
            there = own[node].wanted if node in own else 0
            found.own[node] = Change(replicas=there + more - len(leave), leave=leave)
        if guests:
            found.other[node] = Change(replicas=other[node].wanted - len(guests), leave=guests)
    return found


class Switch(NamedTuple):
    """A ready worker that changes its role. `kind`: of the pool to which it goes."""

    node: str
    replica: Replica
    kind: str


def able(cards: Mapping[int, ModelCard]) -> list[int]:
    """Workers, by lease, that can change their role: none unless all are alike, else they could not read each other's
    blocks.
    """
    switches = [lease for lease, card in cards.items() if card.capabilities.role_switch]
    kinds = {
        (card.name, card.engine, card.mdc_sum, card.kv_cache_block_size, card.context_length) for card in cards.values()
    }
    return switches if len(kinds) == 1 and len(switches) == len(cards) else []


def switch(sides: Sequence[Side], room: int, able: Collection[int]) -> Switch | None:
    """Which worker of two pools goes to the other one, instead of a start there; None: no worker goes.

    `room`: workers that the two may have together. `able`: leases of workers that can change. One goes when its pool is
    about to give one up, or has more than it needs and no other can be started.
    """
    for up, down in (sides, sides[::-1]):
        wants = up.tick.target > up.tick.expected
        full = up.tick.expected + down.tick.expected >= room or not _startable(up)
        gives = down.tick.target < down.tick.expected or (full and _spare(down))
        over = up.tick.expected + down.tick.expected > room  # then somebody has to go anyway
        if wants and gives and not over and not up.refused and not down.refused and len(down.loads) > down.least:
            ready = [
                (node, one)
                for node, pool in down.pools.items()
                for one in pool.replicas
                if one.state == "Ready" and one.lease in down.loads and one.lease in able
            ]
            if ready:
                node, one = min(ready, key=lambda found: (tokens(down.loads[found[1].lease]), found[1].replica))
                return Switch(node, one, up.kind)
    return None


def _spare(side: Side) -> bool:
    """Whether a pool has more workers than it has needed within `window`, though it may keep them for longer."""
    tick = side.tick
    return tick.estimate is not None and max(tick.recent, tick.queue, side.least) < tick.expected


def _startable(side: Side) -> bool:
    """Whether a node has devices for one more worker."""
    return any(pool.free is None or pool.free > 0 for pool in side.pools.values())
