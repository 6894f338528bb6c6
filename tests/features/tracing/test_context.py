"""W3C headers: what counts, what is cut, and what begins a new trace."""

from typing import Any

import pytest

from dynamod.features.tracing.context import (
    BAGGAGE_ENTRIES,
    BAGGAGE_LENGTH,
    STATE_ENTRIES,
    STATE_LENGTH,
    TraceContext,
    read_context,
)
from dynamod.features.tracing.stage import TraceStage
from dynamod.message.worker import Call, Chat, Embed, Generate

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def context(ratio: float = 1.0, *, linked: bool = False, **headers: str) -> TraceContext:
    return read_context(headers, ratio, linked=linked)


def test_a_client_has_its_trace_continued() -> None:
    found = context(traceparent=PARENT, tracestate="a=1,b=2", baggage="user=alice;p=1, x=%20y")
    assert (found.trace, found.parent, found.sampled) == (TRACE, SPAN, True)
    assert (found.state, found.baggage) == ("a=1,b=2", "user=alice;p=1,x=%20y")
    passed = found.passed(0)
    again = found.passed(0)
    assert passed["tracestate"] == "a=1,b=2"
    assert passed["traceparent"].startswith(f"00-{TRACE}-")
    assert [passed["traceparent"].split("-")[2], again["traceparent"].split("-")[2]] == found.attempts[0]
    assert len({SPAN, found.span, *found.attempts[0]}) == 4, "each has a span of its own"


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"{PARENT}\x00",
    ],
)
def test_a_broken_parent_begins_a_trace_without_the_state(broken: str) -> None:
    found = context(traceparent=broken, tracestate="a=1", baggage="k=v")
    assert found.trace != TRACE
    assert (found.parent, found.link, found.state, found.baggage, found.sampled) == ("", None, "", "k=v", True)


def test_a_later_version_may_say_more() -> None:
    assert context(traceparent=f"01-{TRACE}-{SPAN}-01-more").trace == TRACE


def test_the_clients_choice_counts_and_else_the_ratio() -> None:
    assert not context(traceparent=f"00-{TRACE}-{SPAN}-00").sampled
    assert context(0.0, traceparent=PARENT).sampled
    assert not context(0.0).sampled
    kept = sum(context(0.25).sampled for _ in range(2000))
    assert 350 < kept < 650
    unsampled = context(traceparent=f"00-{TRACE}-{SPAN}-00").passed(0)
    assert unsampled["traceparent"].endswith("-00")


async def test_a_worker_learns_the_span_of_its_attempt_also_for_vectors() -> None:
    trace, sent = context(traceparent=PARENT, tracestate="a=1"), list[Any]()

    async def proceed(request: Any) -> None:
        sent.append(request)

    placement: Any = None
    for request in (Generate("r", "m", b"x"), Embed("r", "m", (b"x",)), Chat("r", "m", "embedding", b"{}")):
        await TraceStage(trace, 0).attempt(placement, request, proceed)
    spans = trace.attempts[0]
    assert len({*spans, SPAN}) == 4
    assert [one.trace for one in sent] == [
        {"traceparent": f"00-{TRACE}-{span}-01", "tracestate": "a=1"} for span in spans
    ]
    call = Call("r")
    await TraceStage(trace, 0).attempt(placement, call, proceed)
    assert sent[-1] is call


def test_a_parent_may_become_a_link() -> None:
    found = context(linked=True, traceparent=PARENT, tracestate="a=1")
    assert found.trace != TRACE
    assert (found.parent, found.link, found.state) == ("", (TRACE, SPAN), "a=1"[:0])


def test_lists_are_cut_by_the_limits() -> None:
    state = context(traceparent=PARENT, tracestate=",".join(f"k{one}=v" for one in range(100))).state
    assert len(state.split(",")) == STATE_ENTRIES
    state = context(traceparent=PARENT, tracestate=",".join(f"k{one}={'v' * 100}" for one in range(30))).state
    assert 400 < len(state) <= STATE_LENGTH
    baggage = context(baggage=",".join(f"k{one}=v" for one in range(1000))).baggage
    assert len(baggage.split(",")) == BAGGAGE_ENTRIES
    baggage = context(baggage=",".join(f"k{one}={'v' * 1000}" for one in range(60))).baggage
    assert 7000 < len(baggage) <= BAGGAGE_LENGTH
    assert context(baggage="x" * 1_000_000).baggage == ""
    assert context(traceparent=PARENT, tracestate='a=1,UPPER=2,b="\x01",c=3').state == "a=1,c=3"
