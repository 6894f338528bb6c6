"""A timeline of requests in Chrome's trace format, which Perfetto shows.

A process of the timeline is a model or a session. Requests and calls of tools that overlap stand on tracks of their
own.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


def timeline(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The timeline of requests, and of calls of tools that have ended. Times are microseconds from the first start."""
    spans = sorted([span for row in rows if (span := _span(row)) is not None], key=lambda span: span.start)
    began = spans[0].start if spans else 0.0
    events: list[dict[str, Any]] = []
    tracks: dict[str, list[float]] = {}  # when each track of a process is free
    for start, duration, row in spans:
        request = row.get("request") or row["tool"]
        agent = row.get("agent_context") or {}
        name = f"session {agent['session_id']}" if agent.get("session_id") else str(request.get("model", ""))
        if name not in tracks:
            tracks[name] = []
            events.append(_named("process_name", len(tracks), 0, name))
        pid, free = list(tracks).index(name) + 1, tracks[name]
        start = (start - began) * 1000
        duration *= 1000
        track = next((number for number, until in enumerate(free) if until <= start), len(free))
        if track == len(free):
            free.append(0.0)
            events.append(_named("thread_name", pid, track + 1, f"requests {track + 1}"))
        free[track] = start + duration
        place = {"ph": "X", "pid": pid, "tid": track + 1, "cat": "request" if "request" in row else "tool"}
        shown = {name: value for name, value in request.items() if name not in ("replay", "choices")}
        name = request.get("request_id") or request["tool_class"]
        events.append({"name": name, "ts": start, "dur": duration, "args": shown, **place})
        events += _stages(request, start, duration, place)
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


def _stages(
    request: Mapping[str, Any], start: float, duration: float, place: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    """Parts of a request, within it."""
    queue, first = request.get("queue_ms"), request.get("ttft_ms")
    if queue is None or first is None:
        return
    marks = [0.0, min(queue * 1000, duration), min(first * 1000, duration), duration]
    for name, begin, end in zip(("queue", "first token", "decode"), marks, marks[1:], strict=False):
        if end >= begin:
            yield {"name": name, "ts": start + begin, "dur": end - begin, **place}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
