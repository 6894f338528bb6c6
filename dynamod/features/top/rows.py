"""`dynamo top`, the pure part: two looks at a node (`GET /v1/top`) to one row per process. No clock, no terminal.

What only grows is shown per second of the time between the looks, histograms as percentiles of what came in between;
without an earlier look (or of a process that was not there then) these are None.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from dynamod.control.answers import Daemon
from dynamod.http.metrics import HttpStatistics
from dynamod.message.rows import Row
from dynamod.observe.metrics import Buckets
from dynamod.runtime.statistics import PoolFacts, ProcessStatistics

from . import commands, reasons

Engines = Mapping[str, Mapping[str, float | None]]
"""Statistics of a process's engines, by worker."""

_STATES = ("Ready", "Draining", "Starting")
"""From best to worst; any other is worse."""


class TierFacts(msgspec.Struct, frozen=True):
    """A tier of KV blocks: blocks and bytes in it now; `hits`: blocks that were loaded from it since its start."""

    blocks: int
    bytes: int
    hits: int


class StepFacts(msgspec.Struct, frozen=True):
    """Steps of an engine. `per_second`: finished ones. `running_for`: seconds of the current step, None between steps.

    `tokens`: of prompts and answers in the current step; `usual`: seconds that such a step takes, 0: not known.
    """

    per_second: float | None
    running_for: float | None
    tokens: int
    usual: float


class WorkerFacts(msgspec.Struct, frozen=True):
    """An engine. `hit_rate`: share of prompt tokens found in its KV cache, since its start; blocks of KV cache.

    `pool`: prefill or decode, empty for an aggregated worker. `sessions`: prompts whose blocks wait for their readers.
    `host`, `disk`: its tiers, None where it has none. `steps`: of several engines the longest current step.
    """

    running: int
    waiting: int
    active_blocks: int | None
    total_blocks: int | None
    hit_rate: float | None
    tokens_per_second: float | None
    pool: str = ""
    sessions: int | None = None
    host: TierFacts | None = None
    disk: TierFacts | None = None
    steps: StepFacts | None = None


class IngressFacts(msgspec.Struct, frozen=True):
    """A frontend. `queued`: accepted, no token yet. Seconds to the first token, between tokens: in the interval.

    `errors_per_second`: those of the requests that failed.
    """

    in_flight: int
    queued: int
    requests_per_second: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    errors_per_second: float | None = None


class ProcessRow(msgspec.Struct, frozen=True):
    """One component process. `cpu`: per cent of a core; `rss`: bytes; `mailbox`: messages that wait at its components.

    `state` is the worst of its components'; `answers`: it has sent its statistics just now. `instance`: its lease, as
    `dynamo explain` and workers' labels show it. `session`: the foreground command it belongs to. `waits`: why requests
    wait there.
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
    waits: list[str] = msgspec.field(default_factory=list[str])

    @property
    def shown_state(self) -> str:
        """`Ready`; `Ready?` of a process that does not answer."""
        return self.state if self.answers or self.state != "Ready" else "Ready?"


class Top(Daemon, frozen=True):
    """One look, compared with the one before. `interval`: seconds between them, None for the first."""

    interval: float | None = None
    processes: list[ProcessRow] = msgspec.field(default_factory=list[ProcessRow])


class NodeProcessRow(ProcessRow, frozen=True):
    """A process of one of several nodes. `process` begins with the name of its `node`."""

    node: str = ""


class ClusterTop(Top, frozen=True):
    """Looks at several `nodes`. `missing`: why others have given none, by node."""

    nodes: list[str] = msgspec.field(default_factory=list[str])
    missing: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class Look(commands.Look, frozen=True):
    """A look at a node with the statistics of its processes."""

    statistics: dict[str, ProcessStatistics] = msgspec.field(default_factory=dict[str, ProcessStatistics])


_TIMES = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
_NOTHING, _SILENT = Look(), ProcessStatistics({}, {}, None)


def top(now: Look, before: Look | None = None) -> Top:
    """Rows of a look; `before`: an earlier one."""
    if before is not None and (before.pid != now.pid or before.at >= now.at):
        before = None  # another holder of the node has another clock
    interval = now.at - before.at if before is not None else None
    by_process: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in now.rows:
        by_process[row.session, row.process].append(row)
    processes = [_process(rows, now, before or _NOTHING) for rows in by_process.values()]
    return Top(now.version, now.node, now.pid, now.uptime, interval, processes)


def remembering(view: Top, last: Top) -> Top:
    """The view with the percentiles of the last one where the interval has no request, for the eye."""
    known = {(row.process, row.pid): row.ingress for row in last.processes}

    def remembered(row: ProcessRow) -> ProcessRow:
        now, old = row.ingress, known.get((row.process, row.pid))
        if now is None or old is None:
            return row
        times = {name: getattr(old, name) for name in _TIMES if getattr(now, name) is None}
        return msgspec.structs.replace(row, ingress=msgspec.structs.replace(now, **times))

    return msgspec.structs.replace(view, processes=[remembered(row) for row in view.processes])


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


def _process(rows: Sequence[Row], now: Look, before: Look) -> ProcessRow:
    first = rows[0]
    name, pid = first.process, str(first.pid)
    if all((row.process, row.pid) != (name, first.pid) for row in before.rows):
        before = _NOTHING  # it has begun since
    seconds = now.at - before.at
    vitals, earlier = now.vitals.get(pid), before.vitals.get(pid)
    answers = name in now.statistics
    found, old = now.statistics.get(name, _SILENT), before.statistics.get(name, _SILENT)
    worker = _worker(found.engines, old.engines, seconds, list(found.pools.values()))
    return ProcessRow(
        process=name,
        graph=first.graph,
        components=[row.component for row in rows],
        session=first.session,
        state=max((row.state for row in rows), key=_badness),
        answers=answers,
        pid=first.pid,
        instance=now.instances.get(pid, ""),
        restarts=max(row.restarts for row in rows),
        uptime=first.uptime,
        cpu=100 * (vitals.cpu - earlier.cpu) / seconds if vitals is not None and earlier is not None else None,
        rss=vitals.rss if vitals is not None else None,
        mailbox=sum(found.mailboxes.get(row.component, 0) for row in rows) if answers else None,
        last_error=next((row.last_error for row in rows if row.last_error), ""),
        ingress=_ingress(found.http, old.http, seconds),
        worker=worker,
        waits=[*reasons.of_frontend(found.waits), *reasons.of_worker(rows, worker, answers=answers)],
    )


def _ingress(now: HttpStatistics | None, before: HttpStatistics | None, seconds: float) -> IngressFacts | None:
    if now is None:
        return None
    return IngressFacts(
        now.inflight,
        now.queued,
        _rate(now.requests, before.requests if before is not None else None, seconds),
        *_percentiles(now.first_token, before.first_token if before is not None else None),
        *_percentiles(now.gap, before.gap if before is not None else None),
        _rate(now.errors, before.errors if before is not None else None, seconds),
    )


def _percentiles(now: Buckets, before: Buckets | None) -> tuple[float | None, float | None]:
    """The 50th and the 99th, of what has come between two looks."""
    between = [count - old for count, old in zip(now.counts, before.counts, strict=True)] if before is not None else []
    return quantile(0.5, now.bounds, between), quantile(0.99, now.bounds, between)


def _worker(now: Engines, before: Engines, seconds: float, pools: Sequence[PoolFacts]) -> WorkerFacts | None:
    """All engines of a process as one."""
    if not now:
        return None
    blocks, room, rates = (_known(now, field) for field in ("active_blocks", "total_blocks", "hit_rate"))
    sessions = [one.sessions for one in pools if one.sessions is not None]
    return WorkerFacts(
        pool=", ".join(sorted({one.pool for one in pools})),
        sessions=sum(sessions) if sessions else None,
        running=int(sum(_known(now, "running"))),
        waiting=int(sum(_known(now, "waiting"))),
        active_blocks=int(sum(blocks)) if blocks else None,
        total_blocks=int(sum(room)) if room else None,
        hit_rate=sum(rates) / len(rates) if rates else None,
        tokens_per_second=_rate(sum(_known(now, "tokens")), sum(_known(before, "tokens")) if before else None, seconds),
        host=_tier(now, "host_tier"),
        disk=_tier(now, "disk_tier"),
        steps=_steps(now, before, seconds),
    )


def _steps(now: Engines, before: Engines, seconds: float) -> StepFacts | None:
    if not _known(now, "steps"):
        return None
    longest = max(now.values(), key=lambda one: one.get("in_step_for") or 0.0)
    return StepFacts(
        _rate(sum(_known(now, "steps")), sum(_known(before, "steps")) if before else None, seconds),
        longest.get("in_step_for"),
        int(longest.get("step_tokens") or 0),
        longest.get("usual_step_seconds") or 0.0,
    )


def _tier(engines: Engines, name: str) -> TierFacts | None:
    if not _known(engines, f"{name}_blocks"):
        return None
    return TierFacts(*(int(sum(_known(engines, f"{name}_{field}"))) for field in ("blocks", "bytes", "loaded")))


def _known(engines: Engines, field: str) -> list[float]:
    """A field of all engines that have it."""
    return [value for engine in engines.values() if (value := engine.get(field)) is not None]


def _rate(value: float, earlier: float | None, seconds: float) -> float | None:
    return (value - earlier) / seconds if earlier is not None and value >= earlier else None


def _badness(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)
