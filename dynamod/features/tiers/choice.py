"""Which other worker has most of a prompt, and whether its blocks cost less than computing them. Pure.

The worker that answers is chosen without regard to this: its neighbour may have lost the blocks until they are read.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from dynamod.message.kv_events import Load
from dynamod.router.overlap import Fetch
from dynamod.router.state import WorkerState

UNKNOWN = 0.5
"""The time of a block from another worker by that to compute it, where the answering worker has not measured both."""

_NOTHING = Fetch(0, 0.0)


class Pool(NamedTuple):
    """Workers that may be read from, `workers` that are there, and what is known of them. `name`: as of instances."""

    name: str
    workers: Collection[int]
    state: WorkerState


class Stored(NamedTuple):
    """Blocks of a prompt that a worker has from the start: in its device, and in tiers after these."""

    device: int
    tiers: Fetch = _NOTHING

    @property
    def blocks(self) -> int:
        """In all."""
        return self.device + self.tiers.blocks


class PeerDecision(msgspec.Struct, frozen=True):
    """Whether the blocks of a prompt are read from another worker. `rule` says to people why, with its numbers.

    `instance`, `pool`: the worker that has most; `blocks`: those from the start of the prompt; `own`: how many of them
    the answering worker has itself. `here`, `there`: what the others cost, computed and read, in tokens of prompts.
    """

    fetch: bool
    rule: str
    instance: int
    pool: str
    blocks: int
    own: int
    here: float
    there: float


def name_peer(
    blocks: Sequence[int],
    tokens: int,
    chosen: int,
    answering: WorkerState,
    pools: Iterable[Pool],
    tried: Collection[int],
    move: int,
) -> PeerDecision | None:
    """The decision for a prompt of `blocks` and `tokens` that the worker `chosen` answers.

    None where no worker has more of it. Workers that were `tried` are not read from. `move`: what a read costs
    alongside its blocks, in tokens of prompts. A prompt that costs no more has no decision.
    """
    if tokens <= move or not blocks:
        return None
    own, most, best = Stored(0), 0, list[tuple[float, int, int, str, Stored]]()
    for pool in pools:
        overlaps = pool.state.overlaps(blocks)
        fetches = pool.state.fetches(blocks, overlaps)
        reach = {**overlaps, **{worker: overlaps.get(worker, 0) + one.blocks for worker, one in fetches.items()}}
        own = Stored(overlaps.get(chosen, 0), fetches.get(chosen, _NOTHING)) if chosen in reach else own
        for worker, count in reach.items():
            if count < most or worker == chosen or worker not in pool.workers or worker in tried:
                continue
            most, best = count, best if count == most else []
            found = Stored(overlaps.get(worker, 0), fetches.get(worker, _NOTHING))
            best.append((found.tiers.cost, pool.state.active.of(worker).requests, worker, pool.name, found))
    if most <= own.blocks:
        return None
    _, _, worker, name, found = min(best)
    here, there = costs(own, found, answering.block_size, answering.loads.get(chosen), move)
    fetch = there < here
    rule = f"it costs {there:.0f} tokens to read them, {here:.0f} without"
    return PeerDecision(fetch, rule, worker, name, found.blocks, own.blocks, here, there)


def costs(own: Stored, peer: Stored, size: int, load: Load | None, move: int) -> tuple[float, float]:
    """What the blocks of `peer` cost, in tokens of prompts: loaded and computed by the answering worker, and read.

    All of them are sent, also the blocks that the reader has. `load`: the answering worker's, with what a block takes
    there.
    """
    here = size * (own.tiers.cost + peer.blocks - own.blocks)
    there = size * (peer.blocks * _ratio(load) + peer.tiers.cost) + move
    return here, there


def _ratio(load: Load | None) -> float:
    if load is None or not load.prefill_ms or not load.peer_ms:
        return UNKNOWN
    return load.peer_ms / load.prefill_ms
