"""What metrics show of the pools of a planner, by NVIDIA Dynamo's names where it has them."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.actor import Total

from .pool import PlannedPool

PREFIX = "dynamo_planner"


class PlannerFacts(msgspec.Struct, frozen=True):
    """A pool at the last tick of its planner. Times in seconds, but where a name says ms; tokens of the KV cache.

    `role_switches`: workers that have come from the other pool.
    """

    num_replicas: Annotated[int, Meta(description="Workers that are ready.")]
    num_starting_replicas: Annotated[int, Meta(description="Workers that are starting.")]
    num_failed_replicas: Annotated[int, Meta(description="Workers that failed and are not started again.")]
    target_replicas: Annotated[int, Meta(description="Workers that the planner wants.")]
    active: Annotated[bool, Meta(description="1: the planner acts; 0: it is paused, or a person has set the number.")]
    observed_requests_per_second: Annotated[
        float, Meta(description="Requests that arrived in the last interval, per second.")
    ]
    engine_queued_prefill_tokens: Annotated[int, Meta(description="Prompt tokens that wait for their computation.")]
    engine_inflight_decode_kv_tokens: Annotated[int, Meta(description="Tokens in the KV cache of running requests.")]
    startup_seconds: Annotated[float, Meta(description="Measured time from the start of a worker until it is ready.")]
    role_switches: Annotated[Total, Meta(description="Workers that have come from the other pool.")]
    sla_target_ttft_ms: Annotated[float, Meta(description="Target of the time to the first token.")]
    sla_target_itl_ms: Annotated[float, Meta(description="Target of the time between tokens.")]
    estimated_late_share: Annotated[
        float | None, Meta(description="Share of requests that are expected to miss the target, 0 to 1.")
    ] = None
    estimated_itl_ms: Annotated[float | None, Meta(description="Expected time between tokens.")] = None


class Decision(msgspec.Struct, frozen=True):
    """1 for the reason of the last tick of a pool."""

    load_scaling_decision: Annotated[int, Meta(description="1: the reason of the last tick.")]


def rows(pools: Iterable[PlannedPool]) -> Iterator[tuple[str, dict[str, str], msgspec.Struct]]:
    """Prefix, labels, numbers: for each pool that has been looked at."""
    for pool in pools:
        if not pool.records:
            continue
        record, settings = pool.records[-1], pool.controller.settings
        found, tick = record.tick.estimate, record.tick
        labels = {"component": pool.component}
        yield (
            PREFIX,
            labels,
            PlannerFacts(
                num_replicas=record.ready,
                num_starting_replicas=record.starting,
                num_failed_replicas=record.failed,
                target_replicas=tick.target,
                active=not (pool.reconciler.paused or pool.reconciler.manual),
                observed_requests_per_second=record.arrived / settings.adjustment_interval,
                engine_queued_prefill_tokens=record.queued,
                engine_inflight_decode_kv_tokens=record.context,
                startup_seconds=record.startup,
                role_switches=pool.switches,
                sla_target_ttft_ms=settings.ttft,
                sla_target_itl_ms=settings.itl,
                estimated_late_share=found.late if found is not None else None,
                estimated_itl_ms=found.gap * 1000 if found is not None else None,
            ),
        )
        yield PREFIX, {**labels, "reason": record.refused or tick.reason}, Decision(1)
