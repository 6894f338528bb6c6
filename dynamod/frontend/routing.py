"""What routing looks like from outside: rows for /metrics, made when somebody asks."""

from collections.abc import Iterator

import msgspec

from dynamod.observe.metrics import Buckets
from dynamod.registry.view import View

from .dispatch import Dispatch
from .metrics import Histogram

Row = tuple[str, dict[str, str], msgspec.Struct]
"""Prefix, labels, numbers."""


class RouterRow(msgspec.Struct, frozen=True):
    """Routing of a model: decisions, blocks of prompts, those found where they went, those given away (regret)."""

    decisions_total: int
    prompt_blocks_total: int
    overlap_blocks_total: int
    regret_blocks_total: int
    shadow_differences_total: int
    orphan_events_total: int
    indexed_blocks: int
    active_requests: int


class WorkerRow(msgspec.Struct, frozen=True):
    """Load of a worker as the router knows it: KV blocks in use, prompt tokens still to be computed."""

    active_decode_blocks: int
    active_prefill_tokens: int


class QueueRow(msgspec.Struct, frozen=True):
    """Requests that wait because all workers are busy."""

    pending_requests: int


class OverheadRow(msgspec.Struct, frozen=True):
    """Milliseconds that routing cost: hashes of a prompt's blocks, the decision with its bookkeeping."""

    block_hashing_ms: Buckets
    scheduling_ms: Buckets


def rows(dispatch: Dispatch, view: View, prefix: str) -> Iterator[Row]:
    """The routers of an ingress process. `prefix`: of the original's names (`dynamo_frontend`)."""
    names = {instance.instance_id: instance.process for instance in view.all_instances()}
    for model, router in list(dispatch.routers.items()):
        labels = {"model": model.lower()}
        known = router.statistics()
        yield (
            "dynamod_router",
            labels,
            RouterRow(
                decisions_total=known.decisions,
                prompt_blocks_total=known.blocks,
                overlap_blocks_total=known.overlap,
                regret_blocks_total=known.regret,
                shadow_differences_total=known.shadow_differs,
                orphan_events_total=known.orphan_events,
                indexed_blocks=known.indexed_blocks,
                active_requests=known.active,
            ),
        )
        for worker in sorted(router.workers):
            load = router.active.of(worker)
            name = names.get(worker) or f"{worker:x}"
            yield f"{prefix}_worker", {**labels, "worker": name}, WorkerRow(load.blocks, load.prefill)
        yield f"{prefix}_router_queue", labels, QueueRow(dispatch.waiting(model))
        cost = dispatch.overhead(model)
        yield "dynamo_router_overhead", labels, OverheadRow(_buckets(cost.block_hashing), _buckets(cost.scheduling))


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(tuple(histogram.bounds), tuple(histogram.counts), histogram.total)
