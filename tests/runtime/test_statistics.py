"""What a process answers the daemon: families of all that it counts, and the numbers that `dynamo top` shows."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from dynamod.actor import Actor, System, Total, handle
from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineStatistics
from dynamod.engine.batching.engine import BatchingStatistics
from dynamod.http.metrics import GAP, HttpStatistics, Metrics
from dynamod.ingress.dispatcher import RouterRows
from dynamod.kvcache.store import LevelStatistics
from dynamod.message.bounded import Bounded
from dynamod.message.kv_events import ForwardPass, ScheduledRequests
from dynamod.observe.metrics import SECONDS, Row
from dynamod.runtime.statistics import ProcessStatistics, process_families, process_statistics, report
from dynamod.transport.inbox import InboxStatistics
from dynamod.transport.signing import Signing
from dynamod.worker.statistics import WorkerStatistics


class Routing(msgspec.Struct, frozen=True):
    """A router."""

    decisions: Total


class Worker(Actor):
    """Worker and processor in one."""

    @handle
    async def router_rows(self, message: RouterRows) -> list[Row]:
        return [("dynamod_router", {"model": "m"}, Routing(3))]

    def statistics(self) -> WorkerStatistics:
        steps = tuple(ForwardPass(7, 0.02, ScheduledRequests(sum_prefill_tokens=90), dp_rank=rank) for rank in (0, 1))
        return WorkerStatistics(9, 1, 0, 0, 2, EngineStatistics(running=1, tokens=40), steps=steps)


def context(system: System, *servers: Metrics) -> Any:
    """A process with one connection to another, a router, and these HTTP servers."""
    return SimpleNamespace(
        plan=SimpleNamespace(name="agg/x.0"),
        rows=[lambda: [("dynamo_planner", {}, ForwardPass(8, 0.5))]],
        system=system,
        http=list(servers),
        processor=system.ref("/Worker") if isinstance(system, System) else None,
        unix=SimpleNamespace(statistics=lambda: {"run/agg.Worker.0.sock": InboxStatistics(5, 6, 0, 1)}),
        server=SimpleNamespace(statistics=list),
        transport=SimpleNamespace(
            signing=Signing(),
            unix=SimpleNamespace(statistics=lambda: {"run/agg.Worker.0.sock": InboxStatistics(5, 6, 0, 1)}),
            connection=None,
            tcp=None,
            nats=None,
            servers={},
        ),
    )


def server() -> Metrics:
    metrics = Metrics("ours")
    for name, wait in (("a", 0.003), ("B", 70.0)):
        model = metrics.model(name)
        model.requests["chat_completions", "unary", "success"] = 2
        model.inflight, model.queued = 3, 1
        model.first_token.observe(wait)
        model.gap.observe(0.004, 9)
    return metrics


@virtual
async def test_numbers_for_top() -> None:
    async with System() as system:
        await system.ready(system.start("Worker", Worker), timeout=1)
        found = process_statistics(context(system))
        assert (found.mailboxes, found.http) == ({"": 0, "Worker": 0}, None)
        assert found.engines.keys() == {"Worker"}
        assert (found.engines["Worker"]["tokens"], found.engines["Worker"]["in_step_for"]) == (40, None)

        both = process_statistics(context(system, server(), server()))
        assert both.http is not None
        assert (both.http.requests, both.http.inflight, both.http.queued) == (8, 12, 4)
        assert both.http.first_token.bounds == SECONDS
        assert (both.http.first_token.counts[2], both.http.first_token.counts[-1]) == (2, 2)
        assert sum(both.http.first_token.counts) == 4
        assert (both.http.gap.bounds, sum(both.http.gap.counts)) == (GAP, 36)
        assert msgspec.json.decode(msgspec.json.encode(both), type=ProcessStatistics) == both


def test_a_server_without_models_counts_nothing() -> None:
    found = process_statistics(context(SimpleNamespace(cells=list), Metrics("ours"))).http  # type: ignore[arg-type]
    assert isinstance(found, HttpStatistics)
    assert (found.requests, sum(found.first_token.counts), len(found.gap.counts)) == (0, 0, len(GAP) + 1)


@virtual
async def test_families_of_a_process() -> None:
    async with System() as system:
        await system.ready(system.start("Worker", Worker), timeout=1)
        found = {family.name: family for family in await process_families(context(system, server()))}
        assert {sample.labels["process"] for family in found.values() for sample in family.samples} == {"agg/x.0"}
        assert all(family.documentation and family.type != "unknown" for family in found.values())
        (tokens,) = found["dynamod_worker_engine_tokens"].samples
        assert (tokens.labels["actor"], tokens.value) == ("/Worker", 40)
        prefilled = found["dynamod_worker_step_scheduled_requests_sum_prefill_tokens"].samples
        assert [(sample.labels["dp_rank"], sample.value) for sample in prefilled] == [("0", 90), ("1", 90)]
        steps = {name for name in found if name.startswith("dynamod_worker_step_")} - {prefilled[0].name}
        assert steps == {
            "dynamod_worker_step_counter_id",
            "dynamod_worker_step_wall_time",
        }  # what is not known is absent
        assert {sample.labels["actor"] for sample in found["dynamod_actor_mailbox_depth"].samples} == {"/", "/Worker"}
        assert found["dynamod_child_restarts"].samples[0].labels["child"] == "Worker"
        assert found["dynamo_planner_wall_time"].samples[0].value == 0.5
        assert found["dynamod_router_decisions"].samples[0].value == 3
        assert found["dynamod_inbox_frames"].samples[0].labels["peer"] == "agg.Worker.0"
        counters = {name for name, family in found.items() if family.type == "counter"}
        assert counters == {
            *(f"dynamod_actor_{name}" for name in ("handled", "abandoned", "mailbox_taken")),
            *(
                f"dynamod_worker_{name}"
                for name in ("accepted", "cancelled", "refused", "role_switches", "engine_tokens", "engine_steps")
            ),
            *(f"dynamod_inbox_{name}" for name in ("frames", "deltas", "late")),
            *("dynamod_system_full", "dynamod_child_restarts", "dynamod_router_decisions", "dynamod_records_ignored"),
            *("dynamod_messages_unknown", "dynamod_records_unknown_fields"),
        }
        assert not any(name.startswith("ours") for name in found), "the server itself shows them without the label"


@virtual
async def test_a_processor_that_does_not_answer_costs_the_scrape_only_its_rows() -> None:
    async with System() as system:
        found = {family.name for family in await process_families(context(system))}
        assert "dynamod_system_actors" in found
        assert not any(name.startswith("dynamod_router") for name in found)


async def test_what_the_daemon_gets_has_the_http_servers_too() -> None:
    async with System() as system:
        await system.ready(system.start("Worker", Worker), timeout=1)
        text = await report(context(system, server()), "metrics")
        assert isinstance(text, str)
        found = {family.name: family for family in text_string_to_metric_families(text)}
        assert "dynamod_router_decisions" in found
        requests = {sample.labels["model"]: sample for sample in found["ours_requests"].samples}
        assert requests.keys() == {"a", "b"}
        assert {sample.labels["process"] for sample in requests.values()} == {"agg/x.0"}
        assert isinstance(await report(context(system), "statistics"), ProcessStatistics)
        bounded = await report(context(system), "bounded")
        assert Bounded("mailbox", "/Worker", 0, Worker.mailbox_capacity, "messages") in bounded


def test_nothing_imports_prometheus_client_before_a_scrape() -> None:
    parts = ("frontend", "processor", "worker")
    modules = ("runtime.host", "runtime.statistics", *(f"runtime.components.{part}" for part in parts))
    names = ", ".join(f"dynamod.{name}" for name in (*modules, "control.server", "features.top.rows"))
    code = f"import sys, {names}; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


class Tiered(Worker):
    """A worker with a tier."""

    def statistics(self) -> WorkerStatistics:
        engine = BatchingStatistics(running=1, host_tier=LevelStatistics(3, 4096, *range(7)))
        return WorkerStatistics(9, 1, 0, 0, 2, engine)


@virtual
async def test_numbers_of_nested_structs_have_joined_names() -> None:
    async with System() as system:
        await system.ready(system.start("Worker", Tiered), timeout=1)
        found = process_statistics(context(system))
        engine = found.engines["Worker"]
        assert (engine["running"], engine["host_tier_blocks"], engine["disk_tier"]) == (1, 3, None)
        assert msgspec.json.decode(msgspec.json.encode(found), type=ProcessStatistics).engines["Worker"] == engine
