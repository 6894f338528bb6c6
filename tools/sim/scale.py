"""How far the control plane goes: a large simulated cluster without faults, and what it costs where.

Virtual time makes the cluster large; what is measured in real time are single calls: a routing decision, a change in
the registry as an ingress takes it.
"""

import asyncio
import random as random_module
import sys
import tracemalloc
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec

from dynamod.actor import System
from dynamod.actor.testing import run
from dynamod.discovery.keys import INSTANCES
from dynamod.message.discovery import Instance
from dynamod.router.decision import Decision
from dynamod.router.index import BlockIndex
from dynamod.router.router import Prompt, RouterSettings

from .clients import workload
from .cluster import Cluster
from .events import Log, LogCapture
from .faults import Plan
from .model import options
from .run import Driver
from .shape import MODEL, Shape

SCALE = Shape(nodes=200, workers=2000, ingresses=20, requests=2000, faults=(), span=10.0)

DECISIONS = 20
"""Decisions that a simulated ingress keeps: a thousand, as a real one does, would not fit into memory twenty times."""


def measure(shape: Shape = SCALE, seed: int = 0) -> dict[str, Any]:
    """Numbers of one run, JSON-like. Times named `_us` and `_s` are real ones unless they say virtual."""
    found: dict[str, Any] = {}
    run(_main(shape, seed, found))
    return found


async def _main(shape: Shape, seed: int, found: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    log = Log(loop.time, 1000)
    random = random_module.Random(seed)
    begun, began = perf_counter(), loop.time()
    with LogCapture(log):
        async with System(seed=seed) as system:
            cluster = Cluster(system, log, random, options(512, 1.0), RouterSettings("kv"))
            cluster.decisions = DECISIONS
            await cluster.build(shape, shape.workers, 1.0)
            before = cluster.etcd.events
            await cluster.open(shape)
            await asyncio.sleep(1.0)
            found["size"] = {name: getattr(shape, name) for name in ("nodes", "workers", "ingresses", "requests")}
            found["registry_events_per_ingress_at_start"] = (cluster.etcd.events - before) // shape.ingresses
            found["feed_payloads_at_start"] = cluster.wire.payloads
            built = perf_counter()
            payloads, sent, registry = cluster.wire.payloads, cluster.wire.bytes, cluster.etcd.events
            driver = Driver(cluster, log, Plan((), True, shape.workers), workload(random, shape), shape)
            system.start("driver", lambda: driver, restart="temporary", shutdown=1.0)
            await driver.over.wait()
            _messages(cluster, found, driver, payloads, sent)
            found["events_per_s"] = round((cluster.wire.payloads + cluster.etcd.events) / (perf_counter() - begun))
            found["registry_events_while_serving"] = cluster.etcd.events - registry
            _routing(cluster, found)
            _change(cluster, found)
            found["registry_events_per_ingress_for_a_new_worker"] = await _come(cluster, shape)
            found["real_s"] = {"start": round(built - begun, 2), "requests": round(perf_counter() - built, 2)}
            found["virtual_s"] = round(loop.time() - began, 1)
            found["first_limit"] = _first(found)
    found["problems"] = [f"{check}: {text}" for check, text in log.violations[:5]]


def _messages(cluster: Cluster, found: dict[str, Any], driver: Driver, payloads: int, sent: int) -> None:
    """Payloads and bytes of requests, with the events of workers to all ingresses."""
    number = len(driver.clients)
    ends: dict[str, int] = {}
    for client in driver.clients:
        ends[client.end] = ends.get(client.end, 0) + 1
    tokens = sum(client.tokens for client in driver.clients)
    found["requests_ended"] = dict(sorted(ends.items()))
    found["tokens_per_request"] = round(tokens / number, 1)
    found["payloads_per_request"] = round((cluster.wire.payloads - payloads) / number, 1)
    found["bytes_per_request"] = round((cluster.wire.bytes - sent) / number)


def _routing(cluster: Cluster, found: dict[str, Any]) -> None:
    """The decision, its record, and the index."""
    total = count = blocks = names = 0.0
    records: list[Decision] = []
    index: BlockIndex | None = None
    for place in cluster.running(ingress=True):
        processor = place.processor
        router = processor.router() if processor is not None else None
        if processor is None or router is None:
            continue
        spent = processor.dispatch.counts[MODEL].overhead.scheduling
        total += spent.total
        count += sum(spent.counts)
        statistics = router.state.index.statistics()
        blocks, names = max(blocks, statistics.blocks), max(names, statistics.names)
        index = router.state.index
        if not records:
            decision = router.decide(Prompt("measured", 100, (1, 2, 3)), processor.view.serving(MODEL))
            records += [decision] if decision is not None else []
    found["decision_us"] = round(total / max(1.0, count) * 1000, 1)
    found["decision_record_bytes"] = _weight(records[0]) if records else 0
    found["index_blocks_per_ingress"] = int(blocks)
    found["index_names_per_ingress"] = int(names)
    if index is not None:
        found["index_bytes_per_ingress"] = _index_bytes(index)


def _weight(decision: Decision) -> int:
    """Bytes of a decision in memory, roughly: its candidates with their terms, each with six floats of its own."""
    each = [sys.getsizeof(one) + sys.getsizeof(one.terms) + 6 * sys.getsizeof(1.0) for one in decision.candidates]
    return sum(each) + sys.getsizeof(decision.candidates)


def _index_bytes(index: BlockIndex) -> int:
    """What the index takes: another one is made of it, and the memory counted."""
    events = list(index.dump())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        copy = BlockIndex()
        copy.load(events)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def _change(cluster: Cluster, found: dict[str, Any]) -> None:
    """One worker's record changes: what an ingress does for it."""
    place = cluster.running(ingress=True)[0]
    registry, processor = place.registry, place.processor
    assert registry is not None
    assert processor is not None
    known = registry.known(INSTANCES)
    key, value = next(iter(known.items()))
    changed = msgspec.json.encode(msgspec.structs.replace(msgspec.json.decode(value, type=Instance), process="again"))
    times: list[float] = []
    for change in (changed, value) * 3:
        begun = perf_counter()
        registry.publish(INSTANCES, key, change)
        processor.dispatch.follow()  # which it does once for all that changes in one turn of the loop
        times.append((perf_counter() - begun) * 1e6)
    found["change_us_per_ingress"] = round(_median(times), 1)


async def _come(cluster: Cluster, shape: Shape) -> int:
    before = cluster.etcd.events
    cluster.add("extra", cluster.nodes[0])
    await asyncio.sleep(1.0)
    return (cluster.etcd.events - before) // shape.ingresses


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _first(found: dict[str, Any]) -> str:
    """What an ingress runs out of first, as a sentence."""
    rate = 1e6 / max(found["decision_us"], 0.001)
    changes = 1e6 / max(found["change_us_per_ingress"], 0.001)
    record = found["decision_record_bytes"] * 1000 / 2**20
    parts = [
        f"an ingress can decide {rate:.0f} requests/s",
        f"take {changes:.0f} registry changes/s (a worker that comes or goes is two)",
        f"and keeps {record:.0f} MiB of the last 1,000 decisions",
    ]
    return ", ".join(parts)
