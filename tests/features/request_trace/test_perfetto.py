"""Timelines are in Chrome's trace format, in the way in which Perfetto reads it.

These are the rules of its reader of JSON: names, numbers, and slices of a track that are each within another one or
apart from it, in whole nanoseconds. `e2e/test_perfetto_loads.py` has the reader itself read a timeline.
"""

import json
import math
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.request_trace.perfetto import timeline

NAMES = {"process_name", "thread_name"}
KEYS = {"X": {"name", "ph", "ts", "dur", "pid", "tid", "cat"}, "M": {"name", "ph", "pid", "tid", "args"}}


def wrong(text: str) -> list[str]:
    """What a reader of the format would not take, or would show in the wrong place."""
    found, trace = list[str](), json.loads(text, parse_constant=lambda name: f"the number {name}")
    if {*trace} != {"displayTimeUnit", "traceEvents"} or trace["displayTimeUnit"] not in ("ms", "ns"):
        found.append(f"the object has {[*trace]}")
    named: set[tuple[str, int, int]] = set()
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        kind, place = event["ph"], (event["pid"], event["tid"])
        if not KEYS[kind] <= {*event} <= KEYS[kind] | {"args"} or not isinstance(event["name"], str):
            found.append(f"members of {event}")
        if not all(isinstance(one, int) and 0 <= one < 2**31 for one in place):
            found.append(f"place of {event}")
        if kind == "M":
            named.add((event["name"], *place))
            if event["name"] not in NAMES or not isinstance(event["args"]["name"], str):
                found.append(f"name in {event}")
            continue
        if not {("process_name", event["pid"], 0), ("thread_name", *place)} <= named:
            found.append(f"nothing is named before {event}")
        times = [event["ts"] * 1000, event["dur"] * 1000]
        if not all(isinstance(one, float) and math.isfinite(one) and one >= 0 for one in times):
            found.append(f"times of {event}")
        elif any(abs(one - round(one)) > 1e-3 for one in times):
            found.append(f"parts of nanoseconds in {event}")
        tracks[place].append((round(times[0]), round(times[0]) + round(times[1])))
    for place, slices in tracks.items():
        found += [f"at {place} {one} and {other}" for one, other in crossing(slices)]
    return found


def crossing(slices: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Slices of a track that begin within an earlier one and end after it, in the order of the file."""
    found, open_ = [], list[tuple[int, int]]()
    for one in slices:
        while open_ and open_[-1][1] <= one[0] and open_[-1] != one:
            open_.pop()
        if open_ and not open_[-1][0] <= one[0] <= one[1] <= open_[-1][1]:
            found.append((open_[-1], one))
        open_.append(one)
    return found


moments = st.floats(0, 1e5, allow_nan=False)
requests = st.fixed_dictionaries(
    {
        "request_id": st.text(max_size=5),
        "model": st.sampled_from(["a", "b"]),
        "request_received_ms": st.integers(1_795_000_000_000, 1_795_000_000_200),
        "total_time_ms": moments,
    },
    optional={"queue_ms": moments, "ttft_ms": moments},
)
tools = st.fixed_dictionaries(
    {"tool_call_id": st.just("c"), "tool_class": st.just("t")},
    optional={"duration_ms": moments, "started_at_unix_ms": st.integers(1_795_000_000_000, 1_795_000_000_200)},
)
agents = st.sampled_from([{}, {"agent_context": {"session_id": "s"}}])
rows = st.one_of(
    st.builds(lambda one, agent: {"event_type": "request_end", "request": one, **agent}, requests, agents),
    st.builds(
        lambda one, agent: {"event_type": "tool_end", "event_time_unix_ms": 1_795_000_000_150, "tool": one, **agent},
        *(tools, agents),
    ),
)


@given(st.lists(rows, max_size=20))
def test_each_timeline_keeps_to_the_format(found: list[dict[str, Any]]) -> None:
    text = json.dumps(timeline(found))
    assert wrong(text) == []
    named = [event["name"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert len(named) >= len(found)


def test_what_is_wrong_is_found() -> None:
    row = {"event_type": "request_end", "request": {"request_id": "r", "model": "m", "request_received_ms": 5}}
    row["request"] |= {"total_time_ms": 10.0, "queue_ms": 1.0, "ttft_ms": 2.0}  # type: ignore[index]
    good = timeline([row, row])
    assert wrong(json.dumps(good)) == []
    assert len({event["tid"] for event in good["traceEvents"] if event["ph"] == "X"}) == 2
    for event in good["traceEvents"]:
        event["tid"] = 0 if event["name"] == "process_name" else 1
    changed = json.dumps(good)
    assert any("at (1, 1)" in one for one in wrong(changed.replace('"ts": 2000.0', '"ts": 2000.001')))
    assert any("times" in one for one in wrong(changed.replace('"dur": 1000.0', '"dur": -1.0')))
    assert any("nanoseconds" in one for one in wrong(changed.replace('"dur": 1000.0', '"dur": 999.99950')))
    assert any("named before" in one for one in wrong(changed.replace('"pid": 1', '"pid": 2', 1)))
