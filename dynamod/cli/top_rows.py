"""`dynamo top`, the pure part: two looks at a node (`GET /v1/top`) to one row per process. No clock, no terminal.

What only grows is shown per second of the time between the looks, histograms as percentiles of what came in between;
without an earlier look (or of a process that was not there then) these are None.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_FIRST_TOKEN, _GAP = "_time_to_first_token_seconds", "_inter_token_latency_seconds"
_STATES = ("Ready", "Draining", "Starting")
"""From best to worst; any other is worse."""

Sample = tuple[Mapping[str, str], float]


class WorkerFacts(msgspec.Struct, frozen=True):
    """An engine. `hit_rate`: share of prompt tokens found in its KV cache, since its start; blocks of KV cache."""

    running: int
    waiting: int
    active_blocks: int | None
    total_blocks: int | None
    hit_rate: float | None
    tokens_per_second: float | None


class IngressFacts(msgspec.Struct, frozen=True):
    """A front door. `queued`: accepted, no token yet. Seconds to the first token, between tokens: in the interval."""

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
    """What `GET /v1/top` has answered, with the metrics read."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        self.at = float(answer["at"])
        self.rows: Sequence[Mapping[str, Any]] = answer["rows"]
        self.prefixes, self._samples = parse(answer["metrics"])

    def samples(self, process: str, name: str) -> list[Sample]:
        """All samples of a process with this name."""
        return self._samples.get(process, {}).get(name, [])

    def total(self, process: str, names: Iterable[str]) -> float | None:
        """Sum of all samples of a process with these names; None without any."""
        found = [value for name in names for _, value in self.samples(process, name)]
        return sum(found) if found else None

    def doors(self, process: str, name: str) -> float | None:
        """As `total`, for what front doors count: their names have a prefix that operators choose."""
        return self.total(process, [f"{prefix}_{name}" for prefix in self.prefixes])

    def buckets(self, process: str, name: str) -> dict[float, float]:
        """Cumulative counts of a front door's histogram by upper bound, over all models."""
        counts: dict[float, float] = defaultdict(float)
        for prefix in self.prefixes:
            for labels, value in self.samples(process, f"{prefix}{name}_bucket"):
                counts[float(labels["le"])] += value
        return counts


def parse(text: str) -> tuple[set[str], dict[str, dict[str, list[Sample]]]]:
    """Prometheus text: the prefixes of front doors' names, and samples by process and name."""
    prefixes: set[str] = set()
    found: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for line in text.split("\n"):
        if line.startswith("#"):
            name = line.split(" ", 3)[2]
            if name.endswith(_FIRST_TOKEN):
                prefixes.add(name.removesuffix(_FIRST_TOKEN))
        elif (match := _LINE.fullmatch(line)) is not None:
            labels = {key: _plain(value) for key, value in _LABEL.findall(match[2] or "")}
            found[labels.get("process", "")][match[1]].append((labels, float(match[3])))
    return prefixes, found


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


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """A quantile of cumulative counts by upper bound, linear inside a bucket; above the last bound it is that bound."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below:
            return lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def _process(rows: Sequence[Mapping[str, Any]], now: Look, before: Look | None) -> ProcessRow:
    first = rows[0]
    name, pid = str(first["process"]), int(first["pid"])
    if before is not None and not any(row["process"] == name and row["pid"] == pid for row in before.rows):
        before = None  # it has begun since
    vitals = now.answer["vitals"].get(str(pid))
    cpu = None
    if before is not None and vitals is not None and (earlier := before.answer["vitals"].get(str(pid))) is not None:
        cpu = 100 * (vitals["cpu"] - earlier["cpu"]) / (now.at - before.at)
    uptime = now.total(name, ["dynamod_process_uptime"])
    mail = [
        value
        for labels, value in now.samples(name, "dynamod_actor_mailbox_depth")
        if labels.get("actor", "").lstrip("/") in {row["component"] for row in rows}
    ]
    return ProcessRow(
        process=name,
        graph=first["graph"],
        components=[row["component"] for row in rows],
        session=first.get("session", ""),
        state=max((row["state"] for row in rows), key=_badness),
        answers=bool(mail),
        pid=pid,
        instance=now.answer["instances"].get(str(pid), ""),
        restarts=max(row["restarts"] for row in rows),
        uptime=uptime if uptime is not None else first["uptime"],
        cpu=cpu,
        rss=vitals["rss"] if vitals is not None else None,
        mailbox=int(sum(mail)) if mail else None,
        last_error=next((row["last_error"] for row in rows if row["last_error"]), ""),
        ingress=_ingress(name, now, before),
        worker=_worker(name, now, before),
    )


def _ingress(process: str, now: Look, before: Look | None) -> IngressFacts | None:
    if now.doors(process, "disconnected_clients") is None:
        return None
    ttft, itl = _between(process, _FIRST_TOKEN, now, before), _between(process, _GAP, now, before)
    finished = now.doors(process, "requests_total") or 0.0
    return IngressFacts(
        in_flight=int(now.doors(process, "inflight_requests") or 0),
        queued=int(now.doors(process, "queued_requests") or 0),
        requests_per_second=_rate(
            finished, None if before is None else before.doors(process, "requests_total") or 0.0, now, before
        ),
        ttft_p50=quantile(0.5, ttft),
        ttft_p99=quantile(0.99, ttft),
        itl_p50=quantile(0.5, itl),
        itl_p99=quantile(0.99, itl),
    )


def _worker(process: str, now: Look, before: Look | None) -> WorkerFacts | None:
    def engine(field: str, look: Look = now) -> float | None:
        return look.total(process, [f"dynamod_worker_engine_{field}"])

    running = engine("running")
    if running is None:
        return None
    blocks, room, rates = engine("active_blocks"), engine("total_blocks"), engine("hit_rate")
    known = len(now.samples(process, "dynamod_worker_engine_hit_rate"))
    tokens = engine("tokens_total") or 0.0
    return WorkerFacts(
        running=int(running),
        waiting=int(engine("waiting") or 0),
        active_blocks=int(blocks) if blocks is not None else None,
        total_blocks=int(room) if room is not None else None,
        hit_rate=rates / known if rates is not None else None,
        tokens_per_second=_rate(tokens, engine("tokens_total", before) if before is not None else None, now, before),
    )


def _rate(value: float, earlier: float | None, now: Look, before: Look | None) -> float | None:
    if before is None or earlier is None or value < earlier:
        return None
    return (value - earlier) / (now.at - before.at)


def _between(process: str, name: str, now: Look, before: Look | None) -> dict[float, float]:
    """What has come into a histogram between two looks; nothing without an earlier one."""
    if before is None:
        return {}
    old = before.buckets(process, name)
    return {bound: count - old.get(bound, 0.0) for bound, count in now.buckets(process, name).items()}


def _badness(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
