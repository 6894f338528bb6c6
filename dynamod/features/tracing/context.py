"""W3C trace context: what a client says of its trace, what engines learn of it, and whether a request is sampled."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .stage import TraceStage

if TYPE_CHECKING:
    from dynamod.migration.request import InFlightRequest

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
HEADERS = (TRACEPARENT, TRACESTATE, BAGGAGE)
STATE_LENGTH, STATE_ENTRIES = 512, 32
"""Characters and entries of `tracestate` that are passed on; whole entries at its end are left out."""
BAGGAGE_LENGTH, BAGGAGE_ENTRIES = 8192, 64
"""The same of `baggage`: the W3C limits."""
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MEMBER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e;= \t]*")


class TraceContext(msgspec.Struct, eq=False):
    """The place of one request in its trace. Ids are hexadecimal.

    `span`: of the request here. `parent`: of the client; empty: there is none. `link`: trace and span of the client,
    where the request has a trace of its own. `attempts`: the spans of its sends to workers, by choice, in their order.
    `asked`: the client's request.
    """

    trace: str
    span: str
    sampled: bool
    parent: str = ""
    link: tuple[str, str] | None = None
    state: str = ""
    baggage: str = ""
    attempts: dict[int, list[str]] = {}
    asked: Any = None

    def stage(self, flight: "InFlightRequest") -> TraceStage:
        """The stage of a choice."""
        return TraceStage(self, flight.choice.index)

    def passed(self, choice: int) -> dict[str, str]:
        """The headers of the next send of a choice: its own span is the parent there."""
        span = new_span()
        self.attempts.setdefault(choice, []).append(span)
        found = {TRACEPARENT: f"00-{self.trace}-{span}-{'01' if self.sampled else '00'}"}
        if self.state:
            found[TRACESTATE] = self.state
        if self.baggage:
            found[BAGGAGE] = self.baggage
        return found


def new_span() -> str:
    """A random span id."""
    return os.urandom(8).hex()


def read_context(headers: Mapping[str, str], ratio: float, *, linked: bool) -> TraceContext:
    """The context of a request with these headers. A broken `traceparent` counts as none, and so does its state.

    `ratio`: share of the traces begun here that are sampled; `linked`: each request begins one.
    """
    random, match = os.urandom(24).hex(), None
    if (given := headers.get(TRACEPARENT)) is not None:
        match = _PARENT.fullmatch(given.strip())
    client = _client(match) if match is not None else None
    state = _cut(headers.get(TRACESTATE, ""), _STATE, STATE_ENTRIES, STATE_LENGTH) if client is not None else ""
    baggage = _cut(headers.get(BAGGAGE, ""), _MEMBER, BAGGAGE_ENTRIES, BAGGAGE_LENGTH)
    if client is None or linked:
        trace, span = random[:32], random[32:]
        link = client[:2] if client is not None else None
        return TraceContext(trace, span, _chosen(trace, ratio), link=link, baggage=baggage)
    trace, parent, sampled = client
    return TraceContext(trace, random[32:], sampled, parent, state=state, baggage=baggage)


def _client(match: "re.Match[str]") -> tuple[str, str, bool] | None:
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return None
    return trace, span, bool(int(flags, 16) & 1)


def _chosen(trace: str, ratio: float) -> bool:
    """By the trace id, as the samplers of OpenTelemetry: all programs with one ratio choose the same traces."""
    return ratio >= 1 or int(trace[16:], 16) < int(ratio * (1 << 64))


def _cut(given: str, form: "re.Pattern[str]", most: int, length: int) -> str:
    """The entries of a list that are in order, from its start, as many as the limits allow."""
    if not given:
        return ""
    kept, size = list[str](), -1
    for entry in given[: 4 * length].split(","):
        entry = entry.strip()
        if not form.fullmatch(entry):
            continue
        if len(kept) == most or size + 1 + len(entry) > length:
            break
        kept.append(entry)
        size += 1 + len(entry)
    return ",".join(kept)
