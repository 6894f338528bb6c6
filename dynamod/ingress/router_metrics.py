"""What routing looks like from outside: rows for /metrics, made when somebody asks."""

from collections.abc import Iterator

import msgspec

from dynamod.discovery.view import View
from dynamod.http.metrics import Histogram
from dynamod.observe.metrics import Buckets

from .dispatcher import Dispatcher, Row

__all__ = ["Row", "rows"]


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


class MovesRow(msgspec.Struct, frozen=True):
    """Requests that were sent again to another instance."""

    migration_total: int


class LongRow(msgspec.Struct, frozen=True):
    """Answers that could not move because they were too long."""

    migration_max_seq_len_exceeded_total: int


class MovingRow(msgspec.Struct, frozen=True):
    """Seconds from the break of a stream until another instance had taken the request, or none had."""

    migration_duration_seconds: Buckets


class LimitRow(msgspec.Struct, frozen=True):
    """How often a request may move to another instance."""

    migration_limit: int


def rows(dispatch: Dispatcher, view: View, prefix: str, limit: int | None = None) -> Iterator[Row]:
    """The routers of an ingress process. `prefix`: of the original's names (`dynamo_frontend`). `limit`: of moves,
    where the processor's settings say so instead of the model's card.
    """
    names = {instance.instance_id: instance.process for instance in view.all_instances()}
    for (model, pool), router in dispatch.routers.items():
        labels = {"model": model.lower(), **({"pool": pool} if pool else {})}
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
            load = router.state.active.of(worker)
            name = names.get(worker) or f"{worker:x}"
            yield f"{prefix}_worker", {**labels, "worker": name}, WorkerRow(load.blocks, load.prefill)
        yield f"{prefix}_router_queue", labels, QueueRow(dispatch.waiting((model, pool)))
        if pool:
            continue  # what follows is counted by model
        migrations, name = dispatch.counts[model].migrations, f"{prefix}_model"
        yield name, {**labels, "migration_type": "new_request"}, MovesRow(migrations.new)
        yield name, {**labels, "migration_type": "ongoing_request"}, MovesRow(migrations.ongoing)
        yield name, labels, LongRow(migrations.long)
        yield name, {**labels, "outcome": "success"}, MovingRow(_buckets(migrations.taken))
        yield name, {**labels, "outcome": "failure"}, MovingRow(_buckets(migrations.failed))
        card = view.card(model)
        if card is not None:
            yield name, labels, LimitRow(card.migration_limit if limit is None else limit)
        cost = dispatch.counts[model].overhead
        yield "dynamo_router_overhead", labels, OverheadRow(_buckets(cost.block_hashing), _buckets(cost.scheduling))


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(tuple(histogram.bounds), tuple(histogram.counts), histogram.total)
