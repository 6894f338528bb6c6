"""A timeline of requests in Chrome's trace format, which Perfetto shows.

A process of the timeline is a model or a session; requests that overlap stand on tracks of their own.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def timeline(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The timeline of `request_end` rows. Times are microseconds from the first arrival."""
    rows = [row for row in rows if row.get("event_type") == "request_end" and row.get("request")]
    rows.sort(key=lambda row: row["request"]["request_received_ms"])
    began = rows[0]["request"]["request_received_ms"] if rows else 0
    events: list[dict[str, Any]] = []
    tracks: dict[str, list[float]] = {}  # when each track of a process is free
    for row in rows:
        request = row["request"]
        agent = row.get("agent_context") or {}
        name = f"session {agent['session_id']}" if agent.get("session_id") else str(request.get("model", ""))
        if name not in tracks:
            tracks[name] = []
            events.append(_named("process_name", len(tracks), 0, name))
        pid, free = list(tracks).index(name) + 1, tracks[name]
        start = (request["request_received_ms"] - began) * 1000
        duration = request.get("total_time_ms", 0) * 1000
        track = next((number for number, until in enumerate(free) if until <= start), len(free))
        if track == len(free):
            free.append(0.0)
            events.append(_named("thread_name", pid, track + 1, f"requests {track + 1}"))
        free[track] = start + duration
        place = {"ph": "X", "pid": pid, "tid": track + 1, "cat": "request"}
        shown = {name: value for name, value in request.items() if name not in ("replay", "choices")}
        events.append({"name": request["request_id"], "ts": start, "dur": duration, "args": shown, **place})
        events += _stages(request, start, duration, place)
    return {"displayTimeUnit": "ms", "traceEvents": events}


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
