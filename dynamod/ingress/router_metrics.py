"""Metrics of routing: rows for /metrics, made for each scrape."""

from collections.abc import Iterator

from dynamod.discovery.view import View
from dynamod.http.metrics import Histogram
from dynamod.observe.metrics import Buckets, Row, described

from .counts import STALL, LoopDelay
from .dispatcher import Dispatcher, ModelCounts


def rows(dispatch: Dispatcher, view: View, prefix: str, limit: int | None = None) -> Iterator[Row]:
    """The routers of an ingress process. `prefix`: of the original's names (`dynamo_frontend`).

    `limit`: of migrations, where the processor's settings give it instead of the model's card.
    """
    names = {instance.instance_id: instance.process for instance in view.all_instances()}
    for (model, pool), router in dispatch.routers.items():
        labels = {"model": model.lower(), **({"pool": pool} if pool else {})}
        known = router.statistics()
        text = (
            "Routing of a model: decisions, blocks of prompts, those found where they went, those given away (regret)."
        )
        yield (
            "dynamod_router",
            labels,
            described(
                text,
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
        text = "Load of a worker as the router knows it: KV blocks in use, prompt tokens still to be computed."
        for worker in sorted(router.workers):
            load, name = router.state.active.of(worker), names.get(worker) or f"{worker:x}"
            row = described(text, active_decode_blocks=load.blocks, active_prefill_tokens=load.prefill)
            yield f"{prefix}_worker", {**labels, "worker": name}, row
        row = described(
            "Requests that wait because all workers are busy, and the tokens of their prompts.",
            pending_requests=dispatch.waiting((model, pool)),
            pending_isl_tokens=dispatch.waiting_tokens((model, pool)),
        )
        yield f"{prefix}_router_queue", labels, row
        if (hits := dispatch.counts[model].hits.get(pool)) is not None:
            text = "Share of a prompt's tokens that the router expects in the cache of the worker that it has chosen."
            yield prefix, labels, described(text, kv_hit_rate=_buckets(hits))
        if not pool:
            yield from _counted(dispatch, view, model, prefix, limit)
            yield from _preparation(dispatch.counts[model], prefix, labels)
            yield from _model(dispatch, view, model, prefix)


def loop_row(delay: LoopDelay, prefix: str) -> Row:
    """The event loop of an ingress process, on which all its token streams are."""
    text = f"Seconds by which a timer of the event loop came late, looked at twice a second; stalls: above {STALL} s."
    return (
        prefix,
        {},
        described(text, event_loop_delay_seconds=_buckets(delay.late), event_loop_stall_total=delay.stalls),
    )


def _preparation(counts: ModelCounts, prefix: str, labels: dict[str, str]) -> Iterator[Row]:
    """What a request costs before an engine has it."""
    for name, stage in (("preprocess", counts.preprocess), ("route", counts.route)):
        text = "Requests in a stage before an engine has them, and the seconds that they spent there."
        row = described(text, stage_requests=stage.inside, stage_duration_seconds=_buckets(stage.taken))
        yield prefix, {**labels, "stage": name}, row
    text = "Seconds that prompts took: the chat template with its checks, and the tokenizer."
    found, times = counts.preparation, _buckets(counts.preparation.tokenize)
    yield prefix, labels, described(text, template_seconds=_buckets(found.template), tokenize_seconds=times)
    scaled = Buckets(tuple(round(bound * 1000, 6) for bound in times.bounds), times.counts, times.sum * 1000)
    text = "Milliseconds that the tokenizer took for a prompt."
    yield prefix, {**labels, "operation": "tokenize"}, described(text, tokenizer_latency_ms=scaled)


def _model(dispatch: Dispatcher, view: View, model: str, prefix: str) -> Iterator[Row]:
    """What is known of a model itself."""
    card, labels, name = view.card(model), {"model": model.lower()}, f"{prefix}_model"
    if card is None:
        yield name, labels, described("Whether a worker of the model can be asked.", ready=False)
        return
    yield (
        name,
        labels,
        described("Whether a worker of the model can be asked.", ready=bool(view.served(model, card, "").instances)),
    )
    yield name, labels, described("Tokens of a block of the KV cache.", kv_cache_block_size=card.kv_cache_block_size)
    if card.context_length:
        yield name, labels, described("Most tokens of a prompt and its answer.", context_length=card.context_length)
    router = dispatch.routers[model, ""]
    totals = [router.state.loads[worker].total_blocks for worker in router.workers if worker in router.state.loads]
    if known := [total for total in totals if total]:
        yield (
            name,
            labels,
            described("Blocks in the KV cache of the worker that has the fewest.", total_kv_blocks=min(known)),
        )


def _counted(dispatch: Dispatcher, view: View, model: str, prefix: str, limit: int | None) -> Iterator[Row]:
    """What is counted by model, whatever the pool."""
    labels, name = {"model": model.lower()}, f"{prefix}_model"
    migrations, cost = dispatch.counts[model].migrations, dispatch.counts[model].overhead
    text = "Requests that were sent again to another instance."
    for kind, count in (("new_request", migrations.new), ("ongoing_request", migrations.ongoing)):
        yield name, {**labels, "migration_type": kind}, described(text, migration_total=count)
    text = "Answers that could not move because they were too long."
    yield name, labels, described(text, migration_max_seq_len_exceeded_total=migrations.long)
    text = "Seconds from the break of a stream until another instance had taken the request, or none had."
    for outcome, times in (("success", migrations.taken), ("failure", migrations.failed)):
        yield name, {**labels, "outcome": outcome}, described(text, migration_duration_seconds=_buckets(times))
    for stage in dispatch.stages.values():
        yield from stage.rows(model, name, labels)
    card = view.card(model)
    if card is not None:
        most = card.migration_limit if limit is None else limit
        yield name, labels, described("How often a request may move to another instance.", migration_limit=most)
    text = "Milliseconds that routing cost: hashes of a prompt's blocks, the decision with its bookkeeping."
    hashing, scheduling = _buckets(cost.block_hashing), _buckets(cost.scheduling)
    yield "dynamo_router_overhead", labels, described(text, block_hashing_ms=hashing, scheduling_ms=scheduling)


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(tuple(histogram.bounds), tuple(histogram.counts), histogram.total)
