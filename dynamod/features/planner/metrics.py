"""What metrics show of the pools of a planner, by the original's names where it has them."""

from collections.abc import Iterable, Iterator

import msgspec

from dynamod.actor import Total

from .pool import PlannedPool

PREFIX = "dynamo_planner"


class PlannerFacts(msgspec.Struct, frozen=True):
    """A pool at the last tick of its planner. Times in seconds, but where a name says ms; tokens of the KV cache.

    `role_switches`: workers that have come from the other pool.
    """

    num_replicas: int
    num_starting_replicas: int
    num_failed_replicas: int
    target_replicas: int
    active: bool
    observed_requests_per_second: float
    engine_queued_prefill_tokens: int
    engine_inflight_decode_kv_tokens: int
    startup_seconds: float
    role_switches: Total
    sla_target_ttft_ms: float
    sla_target_itl_ms: float
    estimated_late_share: float | None = None
    estimated_itl_ms: float | None = None


class Decision(msgspec.Struct, frozen=True):
    """1 for the reason of the last tick of a pool."""

    load_scaling_decision: int


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
