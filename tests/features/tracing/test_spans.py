"""The spans of a request, made of the line that an ingress hands on."""

from types import SimpleNamespace

from dynamod.observe.timeline import (
    ACCEPTED,
    ASKED,
    BROKE,
    FINISHED,
    FIRST,
    HANDED,
    PLACED,
    PREFILL_ASKED,
    PREFILL_PLACED,
    RELEASED,
    SENT,
)

from .made import ONE, TWO, a_line, placed, tree
from .receiver import Received

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BEGUN = ((ASKED, 11.0, None), (PLACED, 12.0, placed()), (SENT, 12.0, ONE))
DONE = ((ACCEPTED, 12.5, None), (FIRST, 14.0, None), (FINISHED, 19.0, None))


def seconds(span: Received) -> float:
    return round((span.span.end_time_unix_nano - span.span.start_time_unix_nano) / 1e9, 3)


def test_what_nothing_disturbs() -> None:
    asked = SimpleNamespace(temperature=0.5, max_tokens=7, seed=1 << 70, n=2)
    found = tree(
        a_line(
            (*BEGUN, *DONE),
            asked=asked,
            headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"},
            finish="stop,length",
            first_ms=4000.0,
            prompt_tokens=40,
            cached_tokens=48,
            completion_tokens=9,
            client="10.0.0.1",
        )
    )
    root = found.root
    assert (root.name, seconds(root), root.node) == ("POST /v1/chat/completions", 10.0, "here")
    assert (root.span.trace_id.hex(), root.span.parent_span_id.hex(), root.span.trace_state) == (TRACE, SPAN, "a=1")
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.seed": str(1 << 70),
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.response.time_to_first_chunk": 4.0,
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 48,
        "client.address": "10.0.0.1",
        "dynamo.request.id": "r",
    }.items() <= root.attributes.items()
    assert sum(value for name, value in root.attributes.items() if name.startswith("dynamo.phase.")) == 10_000
    times = {
        name: seconds(found.one(name)) for name in ("preprocess", "queue", "route", "transport", "prefill", "decode")
    }
    assert times == {"preprocess": 0.75, "queue": 0.5, "route": 0.5, "transport": 7.0, "prefill": 1.5, "decode": 5.0}
    route = found.one("route").attributes
    assert (route["dynamo.route.candidates"], route["dynamo.route.candidate_costs"]) == (["5", "6"], [2.5, 4.0])
    assert (route["dynamo.route.overlap_blocks"], route["dynamo.route.cost"]) == (3, 2.5)
    assert (route["dynamo.route.cost.prefill"], route["dynamo.worker.process"]) == (2.0, "agg/Worker.0")
    assert found.one("decode").events == ["first_token"]
    assert found.one("decode").node == "one"
    assert found.one("transport").events == ["accepted"]


def test_a_move_is_two_sends() -> None:
    moved = (
        *((ACCEPTED, 12.5, None), (FIRST, 13.0, None), (BROKE, 15.0, "the worker is gone")),
        *((ASKED, 15.0, None), (PLACED, 15.5, placed(TWO, 0.25)), (SENT, 15.5, TWO)),
        *((ACCEPTED, 16.0, None), (FIRST, 17.0, None), (FINISHED, 19.0, None)),
    )
    found = tree(a_line((*BEGUN, *moved), sends=2))
    first, second = found.all("transport")
    assert (seconds(first), seconds(second)) == (3.0, 3.5)
    assert (first.span.status.code, first.span.status.message) == (2, "the worker is gone")
    before, after = found.all("decode")
    assert (before.events, after.events) == (["first_token", "migrated"], ["resumed"])
    assert (before.node, after.node) == ("one", "two")
    assert (found.parent(before), found.parent(after)) == (first, second)
    assert found.root.attributes["dynamo.phase.migrations_ms"] > 0
    assert found.root.span.status.code == 0


def test_a_prompt_that_another_worker_computes() -> None:
    marks = (
        *((ASKED, 11.0, None), (PLACED, 11.5, placed())),
        *((PREFILL_ASKED, 11.5, None), (PREFILL_PLACED, 12.0, placed(TWO)), (HANDED, 13.0, None)),
        *((SENT, 13.0, ONE), (ACCEPTED, 13.5, None), (RELEASED, 14.0, None), (FIRST, 14.5, None)),
        (FINISHED, 19.0, None),
    )
    found = tree(a_line(marks))
    hand, transfer = found.one("handoff"), found.one("transfer")
    assert (seconds(hand), seconds(transfer), hand.node, transfer.node) == (1.0, 1.0, "two", "two")
    assert found.parent(transfer) == hand
    assert found.parent(hand).name == "transport"
    assert found.one("prefill route").attributes["dynamo.worker.id"] == "6"
    failed = tree(a_line((*marks[:4], (SENT, 13.0, ONE), (ACCEPTED, 13.5, None), *DONE[1:])))
    assert failed.one("handoff").span.status.code == 2
    assert failed.all("transfer") == []


def test_ends_before_a_worker() -> None:
    wrong = tree(a_line((), sends=0, status=404, error="model_not_found", model="", endpoint="chat_completions"))
    assert (wrong.root.span.status.code, wrong.root.attributes["error.type"]) == (2, "model_not_found")
    assert not [name for name in wrong.root.attributes if name.startswith("gen_ai.")]
    waiting = tree(a_line(BEGUN[:1], sends=0, status=499))
    assert [one.name for one in waiting.spans] == ["POST /v1/chat/completions", "preprocess"]
    cut = tree(a_line((*BEGUN, DONE[0]), status=499, finish="gone"))
    assert seconds(cut.one("prefill")) == 7.5, "until the client has left"
    assert cut.all("decode") == []


def test_embeddings_have_spans_without_a_span_that_a_worker_knows() -> None:
    found = tree(a_line((*BEGUN, *DONE), sends=0, endpoint="embeddings", path="/v1/embeddings"))
    assert found.root.attributes["gen_ai.operation.name"] == "embeddings"
    assert found.parent(found.one("prefill")) == found.one("transport")


def test_what_no_utf8_is() -> None:
    found = tree(a_line((*BEGUN, *DONE), path="/v1/chat/completions?x=\ud83d"))
    assert found.root.name.startswith("POST /v1/chat/completions?x=")
