"""What an ingress process hands to its exporter: one line of JSON per request, from which all spans are made."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dynamod.observe.timeline import Timeline


class Candidate(msgspec.Struct, frozen=True):
    """As `router.decision.Candidate`."""

    instance: int
    overlap: int
    requests: int
    total: float = 0.0
    terms: dict[str, float] | None = None


class Decision(msgspec.Struct, frozen=True):
    """What of a `router.decision.Decision` its span has."""

    mode: str
    tokens: int
    block_size: int
    candidates: tuple[Candidate, ...]
    chosen: int
    rule: str
    excluded: tuple[tuple[int, str], ...] = ()
    left_out: int = 0
    more_excluded: int = 0
    most_overlap: int = 0
    pool: str = ""


class About(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a mark is about. `took`: seconds of the decision."""

    instance: int = 0
    process: str = ""
    node: str = ""
    decision: Decision | None = None
    took: float = 0.0
    why: str = ""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """One request. Times are seconds of the clock of the marks; `epoch` is what makes Unix times of them.

    `times`: arrived, begun, read, turn, checked, lowering, lowered, first_write, ended; 0.0: it did not come there.
    `marks`: as `observe.timeline`. The other fields are those of `observe.records.RequestRecord` and of the
    `TraceContext`.
    """

    id: str
    trace: str
    span: str
    parent: str
    link: tuple[str, str] | None
    state: str
    attempts: dict[int, list[str]]
    epoch: float
    times: tuple[float, ...]
    marks: list[tuple[str, int, float, About | None]]
    method: str
    path: str
    client: str
    endpoint: str
    model: str
    stream: bool
    status: int
    error: str
    finish: str
    first_ms: float | None
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    node: str
    process: str
    parameters: Mapping[str, Any]

    def phases(self) -> dict[str, float]:
        """Milliseconds by phase, those of 0 left out."""
        if not self.marks:
            return {}
        arrived, begun, read, turn, checked, lowering, lowered, first_write, ended = self.times
        timeline = Timeline(begun, arrived, read, turn, checked, lowering, lowered, first_write, ended)
        for what, choice, at, about in self.marks:
            timeline.marks.append((what, choice, at, (None, None, about.took) if about is not None else None))
        return {name: round(seconds * 1000, 3) for name, seconds in timeline.phases().items() if seconds}


class Collector(msgspec.Struct, frozen=True):
    """The first line for an exporter: where spans go."""

    url: str
    protocol: str
    headers: str
    service: str
    version: str


class Told(msgspec.Struct, frozen=True):
    """A line of an exporter: requests whose spans a collector has taken, and that no collector has, so far."""

    exported: int
    dropped: int
