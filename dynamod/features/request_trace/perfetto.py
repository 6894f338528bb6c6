"""A timeline of requests in Chrome's trace format, which Perfetto shows.

A process of the timeline is a model or a session. Requests and calls of tools that overlap stand on tracks of their
own: Perfetto drops a slice that overlaps another one of its track and is not within that one. Perfetto keeps times as
nanoseconds, so the times here are computed as whole nanoseconds.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MS = 1_000_000
"""Nanoseconds of a millisecond."""


def timeline(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The timeline of requests, and of calls of tools that have ended. Times are microseconds from the first start."""
    spans = sorted([span for row in rows if (span := _span(row)) is not None], key=lambda span: span.start)
    began = spans[0].start if spans else 0.0
    events: list[dict[str, Any]] = []
    tracks: dict[str, tuple[int, list[int]]] = {}  # by process: its number, and when each of its tracks is free
    for when, took, row in spans:
        request = row.get("request") or row["tool"]
        agent = row.get("agent_context") or {}
        name = f"session {agent['session_id']}" if agent.get("session_id") else str(request.get("model", ""))
        if name not in tracks:
            tracks[name] = len(tracks) + 1, []
            events.append(_named("process_name", len(tracks), 0, name))
        pid, free = tracks[name]
        start, duration = round((when - began) * MS), max(0, round(took * MS))
        track = next((number for number, until in enumerate(free) if until <= start), len(free))
        if track == len(free):
            free.append(0)
            events.append(_named("thread_name", pid, track + 1, f"requests {track + 1}"))
        free[track] = start + duration
        place = {"ph": "X", "pid": pid, "tid": track + 1, "cat": "request" if "request" in row else "tool"}
        shown = {name: value for name, value in request.items() if name not in ("replay", "choices")}
        name = str(request.get("request_id") or request.get("tool_class") or "request")
        events.append({**_slice(name, start, start + duration), "args": shown, **place})
        events += [{**one, **place} for one in _stages(request, start, duration)]
    return {"displayTimeUnit": "ms", "traceEvents": events}


class _Span(NamedTuple):
    """Milliseconds: Unix time of the start, and the duration."""

    start: float
    duration: float
    row: Mapping[str, Any]


def _span(row: Mapping[str, Any]) -> _Span | None:
    """None: the row has no start and end."""
    kind = row.get("event_type")
    if kind == "request_end" and (request := row.get("request")):
        return _Span(request["request_received_ms"], request.get("total_time_ms", 0), row)
    if kind in ("tool_end", "tool_error") and (tool := row.get("tool")):
        ended = tool.get("ended_at_unix_ms") or row["event_time_unix_ms"]
        start = tool.get("started_at_unix_ms") or ended - (tool.get("duration_ms") or 0)
        return _Span(start, max(0.0, tool.get("duration_ms") or ended - start), row)
    return None


def _stages(request: Mapping[str, Any], start: int, duration: int) -> Iterable[dict[str, Any]]:
    """Parts of a request, within it."""
    queue, first = request.get("queue_ms"), request.get("ttft_ms")
    if queue is None or first is None:
        return
    at = 0
    for name, ms in (("queue", queue), ("first token", first)):
        end = min(max(at, round(ms * MS)), duration)  # the row of another program may have them in another order
        yield _slice(name, start + at, start + end)
        at = end
    yield _slice("decode", start + at, start + duration)


def _slice(name: str, begin: int, end: int) -> dict[str, Any]:
    """An event with times in microseconds. `begin`, `end`: in nanoseconds."""
    return {"name": name, "ts": begin / 1000, "dur": (end - begin) / 1000}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
