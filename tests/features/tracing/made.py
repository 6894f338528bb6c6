"""Requests that tests hand to an exporter, made as an ingress makes them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dynamod.features.tracing.context import read_context
from dynamod.features.tracing.handed import Handed
from dynamod.features.tracing.ingress import line
from dynamod.features.tracing.spans import Tree as Made
from dynamod.message.discovery import Instance
from dynamod.observe.records import RequestRecord
from dynamod.observe.timeline import Mark, Timeline
from dynamod.router.decision import Candidate, Decision

from .receiver import Received, Tree, read

ONE = Instance("n", "c", "generate", 5, {}, process="agg/Worker.0", node="one")
TWO = Instance("n", "c", "generate", 6, {}, process="agg/Worker.1", node="two")
CANDIDATES = (Candidate(5, 3, 1, 2.5, {"prefill": 2.0, "active": 0.5}), Candidate(6, 0, 0, 4.0))
DECISION = Decision("r", "m", "kv", 1.0, 40, 16, CANDIDATES, 5, "lowest total")


def placed(instance: Instance = ONE, took: float = 0.5) -> tuple[Any, ...]:
    return (instance, DECISION, took)


def a_line(
    marks: Sequence[tuple[str, float, Any]],
    *,
    headers: dict[str, str] | None = None,
    sends: int = 1,
    ended: float = 20.0,
    asked: Any = None,
    **record: Any,
) -> bytes:
    """The line of a request of one choice that arrived at 10.0 seconds."""
    timeline = Timeline(10.0, 10.0, 10.25, 10.25, 10.5, 10.5, 11.0, 14.0, ended)
    found: list[Mark] = [(what, 0, at, about) for what, at, about in marks]
    timeline.marks.extend(found)
    context = read_context(headers or {}, 1.0, linked=False)
    context.asked = asked
    for _ in range(sends):
        context.passed(0)
    known = {"method": "POST", "path": "/v1/chat/completions", "endpoint": "chat_completions", "model": "m"}
    whole = {**known, "id": "r", "time": 1.0, "duration_ms": 10_000.0, "status": 200, "node": "here", **record}
    return line(RequestRecord(process="agg/ingress.0", timeline=timeline, **whole), timeline, context)


def tree(data: bytes) -> Tree:
    """The spans that an exporter makes of a line, checked to be one tree."""
    spans = Made(msgspec.json.decode(data, type=Handed)).spans
    return Tree(
        Received(span, {"host.name": node, "service.instance.id": process}, read(span.attributes))
        for (node, process), found in spans.items()
        for span in found
    )
