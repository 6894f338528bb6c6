"""Traces by the real commands and a real collector: one tree per request, wherever it goes and whoever dies."""

import json
import os
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.asking import chat_body
from tests.e2e.disagg import LONG, serve
from tests.e2e.nodes import Servers, front, models, worker
from tests.e2e.together import together

from ..receiver import Collector, Tree

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "baggage": "user=alice"}


def ask(url: str, request: str, text: str = "hello", headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """The answer of a chat."""
    sent = {"Content-Type": "application/json", "x-request-id": request, **(headers or {})}
    body = json.dumps(chat_body(text, **fields)).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, sent), timeout=60) as answer:
        return json.load(answer)


def traced(machine: Any, url: str) -> dict[str, float]:
    """Requests with spans, by outcome."""
    text = machine.ask(url, "/metrics")[1]
    found = re.findall(r'^dynamo_frontend_traces_total\{outcome="(\w+)"\} ([\d.]+)', text, re.MULTILINE)
    return {outcome: float(count) for outcome, count in found}


def check_phases(tree: Tree) -> None:
    """The phases of the root are its duration."""
    root = tree.root
    took = (root.span.end_time_unix_nano - root.span.start_time_unix_nano) / 1e6
    phases = sum(value for name, value in root.attributes.items() if name.startswith("dynamo.phase."))
    assert abs(phases - took) < 0.1, (phases, took)


def exemplars(url: str) -> dict[str, set[str]]:
    """Ids of traces by the histogram that names them. The strict parser of OpenMetrics reads all of the text."""
    asked = urllib.request.Request(f"{url}/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.exemplar is not None:
                assert sample.exemplar.value <= float(sample.labels["le"]), "it lies in its bucket"
                found.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
    return found


def test_histograms_name_traces_where_the_scraper_takes_that(machine: Any) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    taken.close()
    with Collector() as collector:
        flags = ("serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0")
        command = machine.start("dynamo", *flags, **collector.environment, DYN_SYSTEM_PORT=str(port))
        url = command.ready()
        ask(url, "unsampled", "hello", {"traceparent": f"00-{'1' * 32}-{SPAN}-00"}, max_tokens=6)
        ask(url, "mine", "hello", CLIENT, max_tokens=6)
        wanted = {
            f"dynamo_frontend_{name}": {TRACE} for name in ("time_to_first_token_seconds", "request_duration_seconds")
        }
        # Records of requests are made in order, shortly after their ends.
        found = machine.until(lambda: exemplars(url))
        assert found == wanted, "no trace that no collector has"
        there = exemplars(f"http://127.0.0.1:{port}")
        assert wanted.items() <= there.items()
        assert there["vllm:time_to_first_token_seconds"] == {TRACE}
        assert TRACE not in machine.ask(url, "/metrics")[1], "the other form has none"


@together
def test_a_request_is_a_tree(machine: Any) -> None:
    with Collector() as collector:
        flags = ("serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0")
        command = machine.start("dynamo", *flags, **collector.environment, OTEL_SERVICE_NAME="ours")
        url = command.ready()
        machine.ask(url, "/health")
        ask(url, "mine", "a private text", CLIENT, max_tokens=6, temperature=0.5, n=2)
        tree = collector.tree("mine")
        root = tree.root
        assert root.span.trace_id.hex() == TRACE
        assert (root.span.parent_span_id.hex(), root.span.trace_state) == (SPAN, "vendor=1")
        assert (root.name, root.span.kind) == ("POST /v1/chat/completions", 2)
        assert root.resource["service.name"] == "ours"
        wanted = {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "sample",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.choice.count": 2,
            "gen_ai.usage.output_tokens": 12,
            "gen_ai.response.finish_reasons": ["length"],
        }
        assert wanted.items() <= root.attributes.items(), root.attributes
        check_phases(tree)
        assert tree.parent(tree.one("preprocess")) == root
        for name in ("queue", "route", "transport"):
            assert [tree.parent(one) for one in tree.all(name)] == [root, root], name
        for name in ("prefill", "decode"):
            assert {tree.parent(one).name for one in tree.all(name)} == {"transport"}
            assert all("Worker" in one.resource["service.instance.id"] for one in tree.all(name))
        assert all(one.events == ["first_token"] for one in tree.all("decode"))
        route = tree.all("route")[0].attributes
        assert route["dynamo.worker.id"] in route["dynamo.route.candidates"]
        assert {"dynamo.route.overlap_blocks", "dynamo.route.cost", "dynamo.route.cost.prefill"} <= route.keys()
        assert "private" not in str(collector.messages)
        try:
            ask(url, "wrong", model="other")
        except urllib.error.HTTPError as error:
            error.close()
        wrong = collector.tree("wrong").root
        assert (wrong.attributes["http.response.status_code"], wrong.attributes["error.type"]) == (
            404,
            "model_not_found",
        )
        assert not [one for one in collector.spans() if "/health" in one.name or "/metrics" in one.name]
        machine.until(lambda: traced(machine, url)["exported"] == 2)
        ask(url, "last", max_tokens=1)
        command.end(signal.SIGTERM)
        assert collector.tree("last", 1), "the end of the graph has sent it"
        assert collector.wrong == []


@together
def test_two_nodes_and_a_kill_are_one_tree(machine: Any, servers: Servers) -> None:
    """A stream begins at one node and ends at another one: its worker is killed with SIGKILL."""
    with Collector() as collector:
        machine.env.update(collector.environment)
        _, url = front(machine, servers)
        for node in ("two", "three"):
            worker(machine, servers, node, speed=0.4)
        machine.until(lambda: models(machine, url) == ["sample"])
        machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
        stream = machine.stream(url, "hello", max_tokens=200, ignore_eos=True)
        name = stream.id.removeprefix("chatcmpl-")
        decisions = machine.raw("GET", f"/v1/requests/{name}/decision", socket_path=machine.folder / "one/d.sock")[1]
        listed = json.loads(machine.ask(url, "/health")[1])["instances"]
        node = next(one["node"] for one in listed if one["instance_id"] == decisions[0]["chosen"])
        rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / node / "d.sock")[1]
        os.kill(next(row["pid"] for row in rows if row["component"] == "Worker"), signal.SIGKILL)
        stream.read()
        assert (stream.finish, stream.done) == ("length", True)
        tree = collector.tree(name)
        check_phases(tree)
        before, after = tree.all("decode")
        assert (before.events, after.events) == (["first_token", "migrated"], ["resumed"])
        assert (before.node, {before.node, after.node}) == (node, {"two", "three"})
        assert tree.root.node == "one"
        assert len(tree.all("transport")) == len(tree.all("route")) == 2
        assert tree.root.attributes["dynamo.phase.migrations_ms"] > 0
        assert tree.root.span.status.code == 0, "the client has its answer"
        assert before.span.status.message


@together
def test_prefill_and_decode_are_one_tree(machine: Any) -> None:
    with Collector() as collector:
        url = serve(machine, **collector.environment).ready()
        ask(url, "long", LONG, max_tokens=20)
        tree = collector.tree("long")
        check_phases(tree)
        handoff, transfer = tree.one("handoff"), tree.one("transfer")
        assert "PrefillWorker" in handoff.resource["service.instance.id"]
        assert handoff.resource == transfer.resource
        assert tree.parent(transfer) == handoff
        assert tree.parent(handoff) == tree.one("transport")
        assert tree.one("prefill route").attributes["dynamo.route.pool"] == "prefill"
        decode = tree.one("decode")
        assert decode.resource["service.instance.id"] not in (handoff.resource["service.instance.id"],)
        assert tree.root.attributes["dynamo.phase.handoff_ms"] > 0


@together
def test_an_engine_elsewhere_continues_the_trace(machine: Any) -> None:
    """`openai:URL` in front of another frontend: both send spans, which are one tree."""
    with Collector() as collector:
        machine.env.update(collector.environment)
        engine = machine.start(
            "dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0", "--model-name=sample"
        )
        upstream = engine.ready()
        command = machine.start(
            "dynamo-run", "in=http", f"out=openai:{upstream}/v1", "--model-name=mine", "--http-port=0"
        )
        url = command.ready()
        ask(url, "outer", headers=CLIENT, model="mine", max_tokens=4)
        collector.tree("outer")
        machine.until(lambda: len([one for one in collector.spans() if one.name.startswith("POST")]) == 2)
        tree = Tree(one for one in collector.spans() if one.span.trace_id.hex() == TRACE)
        inner = next(one for one in tree.spans if one.name.startswith("POST") and one != tree.root)
        assert tree.parent(inner).name == "transport"
        assert (tree.root.span.trace_state, inner.span.trace_state) == ("vendor=1", "vendor=1")


@together
def test_a_collector_that_is_away_slows_no_request(machine: Any) -> None:
    """Neither one that refuses nor one that never answers; both are said once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            "OTEL_EXPORT_ENABLED": "1",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{machine.port()}",
        }
        command = machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0", **environment)
        url = command.ready()
        ask(url, "warm", max_tokens=1, model="sample")
        began = time.monotonic()
        for number in range(20):
            ask(url, f"one-{number}", max_tokens=1, model="sample")
        assert time.monotonic() - began < 10
        machine.until(lambda: traced(machine, url)["dropped"] == 21, 30)
        logs = machine.run("dynamo", "logs").out + command.err
        assert "Connection refused" in logs
        assert logs.count("requests are in no trace so far") <= 2, "in the log and on the terminal"
        command.end(signal.SIGTERM)
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0", **environment)
        url = command.ready()
        for number in range(5):
            ask(url, f"two-{number}", max_tokens=1, model="sample")
        began = time.monotonic()
        command.end(signal.SIGTERM)
        assert time.monotonic() - began < 15, "the end waits for no collector"


@together
def test_off_means_no_exporter_and_nothing_imported(machine: Any) -> None:
    command = machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0", fresh=True)
    url = command.ready()
    ask(url, "plain", headers=CLIENT, max_tokens=1, model="sample")
    assert traced(machine, url) == {}
    pid = machine.row("Frontend")["pid"]
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "google/_upb" not in maps, "protobuf is not loaded"
    command.end()


def test_settings_that_cannot_be_used_are_refused(machine: Any) -> None:
    run = ("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0")
    on_ = {"OTEL_EXPORT_ENABLED": "true"}
    wrong = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": ("udp", "otel_exporter_otlp_protocol"),
        "OTEL_TRACES_SAMPLE_RATIO": ("2", "otel_traces_sample_ratio"),
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("ftp://x", "otel_exporter_otlp_traces_endpoint: 'ftp://x' is no URL"),
    }
    for variable, (value, said) in wrong.items():
        result = machine.run(*run, **on_, **{variable: value})
        assert result.code != 0
        assert said in result.err, result.err
        assert "Traceback" not in result.err


@together
def test_embeddings_are_traced(machine: Any) -> None:
    with Collector() as collector:
        flags = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=mocker")
        command = machine.start("dynamo", *flags, "--Common.model=sample", "--Frontend.port=0", **collector.environment)
        url = command.ready()
        body = json.dumps({"model": "sample", "input": ["a private text", "another one"]}).encode()
        sent = {"Content-Type": "application/json", "x-request-id": "vectors", **CLIENT}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/embeddings", body, sent), timeout=60) as answer:
            assert len(json.load(answer)["data"]) == 2
        tree = collector.tree("vectors")
        assert tree.root.span.trace_id.hex() == TRACE
        found = tree.root.attributes
        assert (found["gen_ai.operation.name"], found["http.route"]) == ("embeddings", "/v1/embeddings")
        assert found["gen_ai.usage.input_tokens"] > 0
        check_phases(tree)
        assert "Worker" in tree.one("prefill").resource["service.instance.id"]
        assert tree.parent(tree.one("transport")) == tree.root
        assert "private" not in str(collector.messages)
