"""Metrics of routing: rows for /metrics, made for each scrape."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.discovery.view import View
from dynamod.message.waits import Waits
from dynamod.observe.metrics import Buckets, Histogram, Row

from .counts import STALL, LoopDelay
from .dispatcher import Dispatcher, ModelCounts


class RouterCounts(msgspec.Struct, frozen=True):
    """Routing of a model."""

    decisions_total: Annotated[int, Meta(description="Decisions of the router.")]
    prompt_blocks_total: Annotated[int, Meta(description="Blocks of prompts.")]
    overlap_blocks_total: Annotated[int, Meta(description="Blocks of prompts that the chosen worker had.")]
    regret_blocks_total: Annotated[
        int, Meta(description="Blocks of prompts that another worker had, and the chosen worker had not.")
    ]
    shadow_differences_total: Annotated[int, Meta(description="Decisions in which the shadow mode chose otherwise.")]
    orphan_events_total: Annotated[int, Meta(description="Events of blocks whose parent is unknown.")]
    indexed_blocks: Annotated[int, Meta(description="Blocks in the index of the router.")]
    active_requests: Annotated[int, Meta(description="Requests that the router has placed and that have not ended.")]


class WorkerLoad(msgspec.Struct, frozen=True):
    """Load of a worker as the router assumes it."""

    active_decode_blocks: Annotated[int, Meta(description="KV blocks in use, as the router assumes.")]
    active_prefill_tokens: Annotated[int, Meta(description="Prompt tokens still to compute, as the router assumes.")]


class QueueLength(msgspec.Struct, frozen=True):
    """Requests that wait because all workers are busy."""

    pending_requests: Annotated[int, Meta(description="Requests that wait because all workers are busy.")]
    pending_isl_tokens: Annotated[int, Meta(description="Tokens of the prompts of these requests.")]


class HitRate(msgspec.Struct, frozen=True):
    """What the router expects in caches."""

    kv_hit_rate: Annotated[
        Buckets, Meta(description="Share of a prompt that the router expects in the chosen worker's cache, 0 to 1.")
    ]


class LoopStatistics(msgspec.Struct, frozen=True):
    """The event loop of an ingress process, which runs all its token streams."""

    event_loop_delay_seconds: Annotated[Buckets, Meta(description="Delay of a timer, measured twice a second.")]
    event_loop_stall_total: Annotated[int, Meta(description=f"Delays of the timer above {STALL} seconds.")]


class StageRequests(msgspec.Struct, frozen=True):
    """Requests without a token."""

    stage_requests: Annotated[
        int,
        Meta(
            description="Requests in a stage: preprocess (checks, template, tokenizer), route, or dispatch (a worker "
            "has the request, and no token has come)."
        ),
    ]


class StageTimes(msgspec.Struct, frozen=True):
    """A stage of a request before an engine has the request."""

    stage_duration_seconds: Annotated[Buckets, Meta(description="Time of requests in a stage.")]


class PromptTimes(msgspec.Struct, frozen=True):
    """What the text of a prompt costs."""

    template_seconds: Annotated[Buckets, Meta(description="Time of the chat template of a prompt, with its checks.")]
    tokenize_seconds: Annotated[Buckets, Meta(description="Time of the tokenizer for a prompt.")]


class TokenizerLatency(msgspec.Struct, frozen=True):
    """The time of the tokenizer under the name that NVIDIA Dynamo has."""

    tokenizer_latency_ms: Annotated[Buckets, Meta(description="Time of the tokenizer for a prompt.")]


class ModelFacts(msgspec.Struct, frozen=True):
    """A model itself; None: not known."""

    ready: Annotated[bool, Meta(description="1: a worker of the model can take a request now.")]
    kv_cache_block_size: Annotated[int | None, Meta(description="Tokens of a KV block.", extra={"unit": "tokens"})] = (
        None
    )
    context_length: Annotated[
        int | None, Meta(description="Most tokens of a prompt and its answer.", extra={"unit": "tokens"})
    ] = None
    total_kv_blocks: Annotated[int | None, Meta(description="KV blocks of the worker with the fewest.")] = None


class Migrated(msgspec.Struct, frozen=True):
    """Requests that were sent again to another instance."""

    migration_total: Annotated[int, Meta(description="Requests that were sent again to another instance.")]


class TooLong(msgspec.Struct, frozen=True):
    """Answers that could not migrate."""

    migration_max_seq_len_exceeded_total: Annotated[
        int, Meta(description="Answers that could not migrate because they were too long.")
    ]


class MigrationTimes(msgspec.Struct, frozen=True):
    """How long migrations take."""

    migration_duration_seconds: Annotated[
        Buckets, Meta(description="From the break of a stream until another instance took the request, or none did.")
    ]


class MigrationLimit(msgspec.Struct, frozen=True):
    """The limit of migrations."""

    migration_limit: Annotated[int, Meta(description="Migrations allowed per request.")]


class Overhead(msgspec.Struct, frozen=True):
    """What routing costs."""

    block_hashing_ms: Annotated[Buckets, Meta(description="Time of all hashes of a prompt.")]
    scheduling_ms: Annotated[Buckets, Meta(description="Time of the decision, with the look into the index.")]


def rows(dispatch: Dispatcher, view: View, prefix: str, limit: int | None = None) -> Iterator[Row]:
    """The routers of an ingress process. `prefix`: of NVIDIA Dynamo's names (`dynamo_frontend`).

    `limit`: of migrations, where the processor's settings give it instead of the model's card.
    """
    names = {instance.instance_id: instance.process for instance in view.all_instances()}
    for (model, pool), router in dispatch.routers.items():
        labels = {"model": model.lower(), **({"pool": pool} if pool else {})}
        known = router.statistics()
        counts = RouterCounts(
            decisions_total=known.decisions,
            prompt_blocks_total=known.blocks,
            overlap_blocks_total=known.overlap,
            regret_blocks_total=known.regret,
            shadow_differences_total=known.shadow_differs,
            orphan_events_total=known.orphan_events,
            indexed_blocks=known.indexed_blocks,
            active_requests=known.active,
        )
        yield "dynamod_router", labels, counts
        for worker in sorted(router.workers):
            load, name = router.state.active.of(worker), names.get(worker) or f"{worker:x}"
            yield f"{prefix}_worker", {**labels, "worker": name}, WorkerLoad(load.blocks, load.prefill)
        waiting = QueueLength(dispatch.waiting((model, pool)), dispatch.waiting_tokens((model, pool)))
        yield f"{prefix}_router_queue", labels, waiting
        if (hits := dispatch.counts[model].hits.get(pool)) is not None:
            yield prefix, labels, HitRate(_buckets(hits))
        if not pool:
            yield from _counted(dispatch, view, model, prefix, limit)
            yield from _preparation(dispatch.counts[model], prefix, labels)
            yield from _model(dispatch, view, model, prefix)


def stage_rows(stages: Iterable[Waits], prefix: str) -> Iterator[Row]:
    """How many requests are in each stage."""
    for one in stages:
        labels = {"model": one.model.lower(), "stage": one.stage, "phase": one.phase}
        yield prefix, labels, StageRequests(one.requests)


def loop_row(delay: LoopDelay, prefix: str) -> Row:
    """The event loop of an ingress process, on which all its token streams are."""
    return prefix, {}, LoopStatistics(_buckets(delay.late), delay.stalls)


def _preparation(counts: ModelCounts, prefix: str, labels: dict[str, str]) -> Iterator[Row]:
    """What a request costs before an engine has it."""
    for name, stage in (("preprocess", counts.preprocess), ("route", counts.route)):
        yield prefix, {**labels, "stage": name}, StageTimes(_buckets(stage.taken))
    found, times = counts.preparation, _buckets(counts.preparation.tokenize)
    yield prefix, labels, PromptTimes(_buckets(found.template), times)
    scaled = Buckets(tuple(round(bound * 1000, 6) for bound in times.bounds), times.counts, times.sum * 1000)
    yield prefix, {**labels, "operation": "tokenize"}, TokenizerLatency(scaled)


def _model(dispatch: Dispatcher, view: View, model: str, prefix: str) -> Iterator[Row]:
    """What is known of a model itself."""
    card, labels, name = view.card(model), {"model": model.lower()}, f"{prefix}_model"
    if card is None:
        yield name, labels, ModelFacts(ready=False)
        return
    router = dispatch.routers[model, ""]
    totals = [router.state.loads[worker].total_blocks for worker in router.workers if worker in router.state.loads]
    facts = ModelFacts(
        ready=bool(view.served(model, card, "").instances),
        kv_cache_block_size=card.kv_cache_block_size,
        context_length=card.context_length or None,
        total_kv_blocks=min((total for total in totals if total), default=None),
    )
    yield name, labels, facts


def _counted(dispatch: Dispatcher, view: View, model: str, prefix: str, limit: int | None) -> Iterator[Row]:
    """What is counted by model, whatever the pool."""
    labels, name = {"model": model.lower()}, f"{prefix}_model"
    migrations, cost = dispatch.counts[model].migrations, dispatch.counts[model].overhead
    for kind, count in (("new_request", migrations.new), ("ongoing_request", migrations.ongoing)):
        yield name, {**labels, "migration_type": kind}, Migrated(count)
    yield name, labels, TooLong(migrations.long)
    for outcome, times in (("success", migrations.taken), ("failure", migrations.failed)):
        yield name, {**labels, "outcome": outcome}, MigrationTimes(_buckets(times))
    for stage in dispatch.stages.values():
        yield from stage.rows(model, name, labels)
    card = view.card(model)
    if card is not None:
        most = card.migration_limit if limit is None else limit
        yield name, labels, MigrationLimit(most)
    overhead = Overhead(_buckets(cost.block_hashing), _buckets(cost.scheduling))
    yield "dynamo_router_overhead", labels, overhead


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(tuple(histogram.bounds), tuple(histogram.counts), histogram.total)
