"""`dynamo top`, the pure part: two looks at a node (`GET /v1/top`) to one row per process. No clock, no terminal.

What only grows is shown per second of the time between the looks, histograms as percentiles of what came in between;
without an earlier look (or of a process that was not there then) these are None.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from dynamod.http.metrics import HttpStatistics
from dynamod.observe.metrics import Buckets
from dynamod.runtime.statistics import ProcessStatistics

Engines = Mapping[str, Mapping[str, float | None]]
"""Statistics of a process's engines, by worker."""

_STATES = ("Ready", "Draining", "Starting")
"""From best to worst; any other is worse."""


class WorkerFacts(msgspec.Struct, frozen=True):
    """An engine. `hit_rate`: share of prompt tokens found in its KV cache, since its start; blocks of KV cache."""

    running: int
    waiting: int
    active_blocks: int | None
    total_blocks: int | None
    hit_rate: float | None
    tokens_per_second: float | None


class IngressFacts(msgspec.Struct, frozen=True):
    """A frontend. `queued`: accepted, no token yet. Seconds to the first token, between tokens: in the interval."""

    in_flight: int
    queued: int
    requests_per_second: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None


class ProcessRow(msgspec.Struct, frozen=True):
    """One component process. `cpu`: per cent of a core; `rss`: bytes; `mailbox`: messages that wait at its components.

    `state` is the worst of its components'; `answers`: it has told its statistics just now. `instance`: its lease, as
    `dynamo explain` and workers' labels show it. `session`: the foreground command it belongs to.
    """

    process: str
    graph: str
    components: list[str]
    session: str
    state: str
    answers: bool
    pid: int
    instance: str
    restarts: int
    uptime: float | None
    cpu: float | None
    rss: int | None
    mailbox: int | None
    last_error: str
    ingress: IngressFacts | None = None
    worker: WorkerFacts | None = None


class Top(msgspec.Struct, frozen=True):
    """One look, compared with the one before. `interval`: seconds between them, None for the first."""

    version: str
    node: str
    pid: int
    uptime: float
    interval: float | None
    processes: list[ProcessRow]


class Look:
    """What `GET /v1/top` has answered; `statistics` by process, of those that answer."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        self.at = float(answer["at"])
        self.rows: Sequence[Mapping[str, Any]] = answer["rows"]
        self.statistics = msgspec.convert(answer["statistics"], dict[str, ProcessStatistics])


def top(now: Look, before: Look | None = None) -> Top:
    """Rows of a look; `before`: an earlier one."""
    answer = now.answer
    if before is not None and (before.answer["pid"] != answer["pid"] or before.at >= now.at):
        before = None  # another holder of the node has another clock
    by_process: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in now.rows:
        by_process[row.get("session", ""), row["process"]].append(row)
    return Top(
        version=answer["version"],
        node=answer["node"],
        pid=answer["pid"],
        uptime=answer["uptime"],
        interval=now.at - before.at if before is not None else None,
        processes=[_process(rows, now, before) for rows in by_process.values()],
    )


def quantile(share: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """A quantile of counts per bucket, linear inside a bucket; above the last bound it is that bound, None of nothing.

    `bounds`: upper ones, inclusive; one more count for what lies above all.
    """
    rank = share * sum(counts)
    lower = 0.0
    for bound, count, reached in zip(bounds, counts, accumulate(counts), strict=False):
        if count > 0 and reached >= rank:
            return lower + (bound - lower) * (rank - reached + count) / count
        lower = bound
    return lower if any(counts) else None


def _process(rows: Sequence[Mapping[str, Any]], now: Look, before: Look | None) -> ProcessRow:
    first = rows[0]
    name, pid = str(first["process"]), int(first["pid"])
    if before is not None and not any(row["process"] == name and row["pid"] == pid for row in before.rows):
        before = None  # it has begun since
    vitals = now.answer["vitals"].get(str(pid))
    cpu = None
    if before is not None and vitals is not None and (earlier := before.answer["vitals"].get(str(pid))) is not None:
        cpu = 100 * (vitals["cpu"] - earlier["cpu"]) / (now.at - before.at)
    found = now.statistics.get(name)
    old = before.statistics.get(name) if before is not None else None
    seconds = now.at - before.at if before is not None else 0.0
    return ProcessRow(
        process=name,
        graph=first["graph"],
        components=[row["component"] for row in rows],
        session=first.get("session", ""),
        state=max((row["state"] for row in rows), key=_badness),
        answers=found is not None,
        pid=pid,
        instance=now.answer["instances"].get(str(pid), ""),
        restarts=max(row["restarts"] for row in rows),
        uptime=first["uptime"],
        cpu=cpu,
        rss=vitals["rss"] if vitals is not None else None,
        mailbox=sum(found.mailboxes.get(row["component"], 0) for row in rows) if found is not None else None,
        last_error=next((row["last_error"] for row in rows if row["last_error"]), ""),
        ingress=_ingress(found.http, old.http if old is not None else None, seconds) if found else None,
        worker=_worker(found.engines, old.engines if old is not None else {}, seconds) if found else None,
    )


def _ingress(now: HttpStatistics | None, before: HttpStatistics | None, seconds: float) -> IngressFacts | None:
    if now is None:
        return None
    ttft = _between(now.first_token, before.first_token) if before is not None else []
    itl = _between(now.gap, before.gap) if before is not None else []
    return IngressFacts(
        in_flight=now.inflight,
        queued=now.queued,
        requests_per_second=_rate(now.requests, before.requests if before is not None else None, seconds),
        ttft_p50=quantile(0.5, now.first_token.bounds, ttft),
        ttft_p99=quantile(0.99, now.first_token.bounds, ttft),
        itl_p50=quantile(0.5, now.gap.bounds, itl),
        itl_p99=quantile(0.99, now.gap.bounds, itl),
    )


def _worker(now: Engines, before: Engines, seconds: float) -> WorkerFacts | None:
    """All engines of a process as one."""
    if not now:
        return None
    blocks, room, rates = (_known(now, field) for field in ("active_blocks", "total_blocks", "hit_rate"))
    return WorkerFacts(
        running=int(sum(_known(now, "running"))),
        waiting=int(sum(_known(now, "waiting"))),
        active_blocks=int(sum(blocks)) if blocks else None,
        total_blocks=int(sum(room)) if room else None,
        hit_rate=sum(rates) / len(rates) if rates else None,
        tokens_per_second=_rate(sum(_known(now, "tokens")), sum(_known(before, "tokens")) if before else None, seconds),
    )


def _known(engines: Engines, field: str) -> list[float]:
    """A field of all engines that have it."""
    return [value for engine in engines.values() if (value := engine.get(field)) is not None]


def _rate(value: float, earlier: float | None, seconds: float) -> float | None:
    return (value - earlier) / seconds if earlier is not None and value >= earlier else None


def _between(now: Buckets, before: Buckets) -> list[int]:
    """What has come into each bucket between two looks."""
    return [count - old for count, old in zip(now.counts, before.counts, strict=True)]


def _badness(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)
