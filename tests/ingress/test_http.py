"""Routes, errors, ids, keys, health, metrics, log lines: over real HTTP, mostly as bytes."""

import asyncio
import gzip
import json
import logging
import shutil
import subprocess

import aiohttp
import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from dynamod.http.context import GONE, error_type
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, EngineFailed, NotFound, Overloaded, RequestError, TimedOut
from dynamod.observe.frequent import write_waiting

PATH = "/v1/chat/completions"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHAT = {"model": "org/model", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def call(server):
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def request(method: str, path: str, **kwargs):
            async with session.request(method, path, **kwargs) as answer:
                raw = await answer.read()
                kind = answer.headers.get("Content-Type", "")
                return answer.status, json.loads(raw) if raw and "json" in kind else raw, answer.headers

        yield request


async def test_live_and_health(call, backend) -> None:
    assert (await call("GET", "/live"))[:2] == (200, {"message": "Service is live", "status": "live"})
    status, body, _ = await call("GET", "/health")
    assert (status, body["status"], body["endpoints"]) == (200, "healthy", ["dyn://dynamo.worker.generate"])
    backend.alive = False
    status, body, _ = await call("GET", "/health")
    assert status == 503
    assert body == {"instances": [], "message": "No endpoints available", "status": "unhealthy"}


@pytest.mark.parametrize("path", ["/v1/models/org/model", "/v1/models/org%2Fmodel"])
async def test_a_model_id_may_have_slashes(call, path) -> None:
    status, body, _ = await call("GET", path)
    expected = {"id": "org/model", "object": "model", "created": 7, "owned_by": "dynamod"}
    assert (status, body) == (
        200,
        expected | {"max_model_len": 4096, "context_length": 4096, "types": ["chat", "completions"]},
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/nothing", 404, "unknown_url", None),
        ("POST", "/v1/images", 404, "unknown_url", None),
        ("GET", PATH, 405, "method_not_allowed", "POST"),
        ("DELETE", "/v1/models/org/model", 405, "method_not_allowed", "GET, HEAD"),
        ("OPTIONS", PATH, 405, "method_not_allowed", "POST"),
        ("PATCH", "/health", 405, "method_not_allowed", "GET, HEAD"),
        ("GET", "/v1/models/none", 404, "model_not_found", None),
    ],
)
async def test_wrong_paths_and_methods_answer_in_openai_form(call, method, path, status, code, allow) -> None:
    got, body, headers = await call(method, path)
    assert (got, body["error"]["code"], body["error"]["type"]) == (status, code, "invalid_request_error")
    assert headers.get("Allow") == allow
    assert headers["x-request-id"]


async def test_head_is_get_without_a_body(call) -> None:
    status, body, _ = await call("HEAD", "/health")
    assert (status, body) == (200, b"")


async def test_the_request_id_is_taken_and_returned(call, backend) -> None:
    _, body, headers = await call("POST", PATH, json=CHAT, headers={"x-request-id": "mine-1"})
    assert (headers["x-request-id"], body["id"], backend.jobs[0].id) == ("mine-1", "chatcmpl-mine-1", "mine-1")
    for bad in ("a b", "x" * 129, "\u00e9"):
        _, _, headers = await call("GET", "/live", headers={"x-request-id": bad})
        assert headers["x-request-id"] != bad
        assert len(headers["x-request-id"]) == 36


async def test_two_requests_of_one_id_at_once_are_two_jobs(call, backend, until) -> None:
    go = asyncio.Event()

    async def play(job, sink) -> None:
        await go.wait()
        await backend.say(job, sink)

    backend.play = play
    calls = [asyncio.create_task(call("POST", PATH, json=CHAT, headers={"x-request-id": "same"})) for _ in range(2)]
    await until(lambda: len(backend.jobs) == 2)
    go.set()
    answers = [await each for each in calls]
    assert {headers["x-request-id"] for _, _, headers in answers} == {"same"}
    assert len({job.id for job in backend.jobs}) == 2


async def test_a_single_model_needs_no_name(call, backend) -> None:
    for name in ({}, {"model": ""}):
        status, body, _ = await call("POST", PATH, json={"messages": CHAT["messages"]} | name)
        assert (status, body["model"], backend.jobs[-1].request.model) == (200, "org/model", "org/model")
    backend.cards["two"] = ModelCard(name="two")
    status, body, _ = await call("POST", PATH, json={"messages": CHAT["messages"]})
    assert (status, body["error"]["param"]) == (400, "model")
    assert "org/model, two" in body["error"]["message"]


async def test_no_models_at_all_is_503(call, backend) -> None:
    backend.cards.clear()
    status, body, headers = await call("POST", PATH, json=CHAT)
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "no_workers", "1")


async def test_the_overload_status_is_a_setting(serve, backend, connect) -> None:
    backend.refuse = Overloaded("full")
    client = await connect(await serve(overload_status=529))
    client.post(PATH, json.dumps(CHAT | {"stream": True}).encode())
    assert (await client.head())[0] == 529


async def test_a_mistake_of_ours_is_a_500_without_details(call, backend, caplog) -> None:
    async def start(job, sink):
        raise KeyError("secret")

    backend.start = start
    with caplog.at_level(logging.ERROR, "dynamod.frontend"):
        status, body, _ = await call("POST", PATH, json=CHAT)
    assert (status, body["error"]["type"], body["error"]["code"]) == (500, "server_error", "internal_error")
    assert "secret" not in json.dumps(body)
    assert "KeyError" in caplog.text


async def test_too_large(serve, connect) -> None:
    server = await serve(body_limit_mb=0.001)
    told = await connect(server)
    told.writer.write(POST + b"Content-Length: 5000000000\r\n\r\n")
    status, headers = await told.head()
    assert status == 413
    assert json.loads(await told.body(headers))["error"]["code"] == "request_too_large"
    hidden = await connect(server)
    hidden.writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    hidden.writer.write(b"400\r\n" + b" " * 1024 + b"\r\n" + b"40\r\n" + b" " * 64 + b"\r\n")
    assert (await hidden.head())[0] == 413
    bomb = await connect(server)
    bomb.post("/v1/completions", gzip.compress(b" " * 2000), content_encoding="gzip")
    assert (await bomb.head())[0] == 413


async def test_compressed_bodies_and_expectations(server, connect) -> None:
    client = await connect(server)
    body = json.dumps(CHAT).encode()
    client.post(PATH, gzip.compress(body), content_encoding="gzip")
    status, headers = await client.head()
    assert status == 200
    await client.body(headers)
    client.writer.write(
        POST.replace(b"/v1/completions", PATH.encode())
        + f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert (await client.head())[0] == 100
    client.writer.write(body)
    assert (await client.head())[0] == 200
    broken = await connect(server)
    broken.post(PATH, b"no gzip at all", content_encoding="gzip")
    assert (await broken.head())[0] == 400


async def test_what_is_not_http_gets_a_400(server, connect) -> None:
    client = await connect(server)
    client.writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    status, headers = await client.head()
    assert status == 400
    assert json.loads(await client.body(headers))["error"]["code"] == "bad_http"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"OPTIONS * HTTP/1.1", 404),
        (b"GET http://other/live HTTP/1.1", 200),
        (b"GET //live HTTP/1.1", 404),
        (b"GET /v1/models/%FF%00%ED%A0%80 HTTP/1.1", 404),
        (b"GET /live?x=%zz HTTP/1.1", 200),
        (b"GET /v1/../live HTTP/1.1", 404),
        (b"CONNECT other:443 HTTP/1.1", 404),
        (b"GET /%2e%2e/live HTTP/1.1", 404),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1", 414),
        (b"GET /live/ HTTP/1.1", 200),
        (b"GET /live// HTTP/1.1", 404),
        (b"GET /v1/models/" + b"a" * 5000 + b" HTTP/1.1", 404),
    ],
)
async def test_odd_targets(server, connect, line, status) -> None:
    client = await connect(server)
    client.writer.write(line + b"\r\nHost: x\r\n\r\n")
    got, headers = await client.head()
    json.loads(await client.body(headers))
    assert got == status


async def test_a_text_engine_never_sees_broken_json(server, backend, connect) -> None:
    backend.cards["t"] = ModelCard(name="t", kind="text")
    corner = b'{"model":"t","messages":[{"role":"user","content":"x","weird":"%b"}]}'
    for weird, status in ((b"\xff", 400), (b"\\ud800", 400), (b"fine", 200)):
        client = await connect(server)
        client.post(PATH, corner % weird)
        assert (await client.head())[0] == status
    assert len(backend.jobs) == 1


async def test_api_keys(serve, connect) -> None:
    server = await serve(api_keys="good,b\u00e9tter")

    async def ask(path: str, **headers: str) -> int:
        client = await connect(server)
        client.post(path, json.dumps(CHAT).encode(), **headers)
        status, fields = await client.head()
        body = json.loads(await client.body(fields))
        if status == 401:
            assert body["error"]["code"] == "invalid_api_key"
            assert fields["www-authenticate"] == "Bearer"
        return status

    assert await ask(PATH) == 401
    assert await ask(PATH, authorization="Bearer bad") == 401
    assert await ask(PATH, authorization="Bearer ") == 401
    assert await ask(PATH, authorization="Basic good") == 401
    assert await ask("/v1/nothing") == 401
    assert await ask(PATH, authorization="Bearer good") == 200
    assert await ask(PATH, authorization="bearer b\u00e9tter") == 200
    assert await ask("/health", authorization="none") == 405


async def test_unknown_fields(serve, connect, backend) -> None:
    body = json.dumps(CHAT | {"foo": 1, "bar": {"baz": []}}).encode()
    lenient, strict = await serve(), await serve(unknown_fields="reject")
    client = await connect(lenient)
    client.post(PATH, body)
    assert (await client.head())[0] == 200
    assert lenient.metrics.unknown_fields == 2
    assert backend.jobs[0].body == body
    client = await connect(strict)
    client.post(PATH, body)
    status, headers = await client.head()
    error = json.loads(await client.body(headers))["error"]
    assert (status, error["param"], error["code"]) == (400, "foo", "unknown_parameter")


async def test_tls(serve, tmp_path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    make = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*make, "-subj", "/CN=x", "-keyout", key, "-out", cert], check=True, capture_output=True)
    server = await serve(tls_cert_path=cert, tls_key_path=key)
    async with aiohttp.ClientSession() as session:
        where = f"https://127.0.0.1:{server.port}/v1/chat/completions"
        async with session.post(where, json=CHAT | {"stream": True}, ssl=False) as answer:
            assert answer.status == 200
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    await asyncio.sleep(0.05)


async def test_one_log_line_per_request(call, server, caplog) -> None:
    with caplog.at_level(logging.INFO, "dynamod.frontend"):
        await call("POST", PATH, json=CHAT, headers={"x-request-id": "r1"})
        await call("GET", "/live")
        await call("POST", PATH + "%0Aevil", json=CHAT | {"model": "a\nb"})
    write_waiting()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert len(lines) == 2
    fields = dict(pair.split("=", 1) for pair in lines[0].split()[1:])
    assert float(fields.pop("ttft_ms")) >= 0
    assert float(fields.pop("duration_ms")) > 0
    assert fields == {
        "id": "r1", "method": "POST", "path": PATH, "status": "200", "model": "org/model", "stream": "false",
        "prompt_tokens": "5", "completion_tokens": "5", "finish": "stop",
    }  # fmt: skip
    assert "\n" not in lines[1]


async def test_metrics(call, server, backend) -> None:
    async def collect() -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("dynamo_actor_mail", "TransportSelector", value=3)]

    await call("POST", PATH, json=CHAT)
    await call("POST", PATH, json=CHAT | {"stream": True, "x": 1})
    await call("POST", PATH, json=CHAT | {"model": "typed-by-a-client"})
    await call("POST", "/v1/completions", json={"model": "org/model", "prompt": "x", "stream": True})
    backend.refuse = Overloaded("full")
    await call("POST", PATH, json=CHAT)
    server.collectors.append(collect)
    status, text, headers = await call("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    names = {name for name in families if name.startswith("dynamo_frontend_")}
    assert names == {
        "dynamo_frontend_" + name
        for name in (
            "requests", "inflight_requests", "queued_requests", "request_duration_seconds", "input_sequence_tokens",
            "output_sequence_tokens", "time_to_first_token_seconds", "inter_token_latency_seconds", "output_tokens",
            "disconnected_clients", "model_rejection", "model_cancellation", "unknown_fields",
            "unsupported_fields", "requests_started", "active_requests", "cached_tokens",
        )
    }  # fmt: skip
    values = {
        (sample.name.removeprefix("dynamo_frontend_"), *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["requests_total", "", "chat_completions", "org/model", "success", "unary"] == 1
    assert values["requests_total", "", "chat_completions", "org/model", "stream", "success"] == 1
    assert values["requests_total", "", "completions", "org/model", "stream", "success"] == 1
    assert values["requests_total", "chat_completions", "error", "org/model", "overload", "unary"] == 1
    assert values["requests_total", "chat_completions", "error", "not_found", "unary", "unknown"] == 1
    assert values["requests_started_total", "chat_completions", "org/model", "unary"] == 2
    assert values["requests_started_total", "chat_completions", "org/model", "stream"] == 1
    assert values["active_requests", "org/model"] == 0
    assert values["model_rejection_total", "chat_completions", "org/model"] == 1
    assert values["unknown_fields_total",] == 1
    assert values["output_tokens_total", "org/model"] == 15
    assert values["inflight_requests", "org/model"] == values["queued_requests", "org/model"] == 0
    assert values["time_to_first_token_seconds_count", "org/model"] == 3
    assert values["inter_token_latency_seconds_count", "org/model"] == 12
    assert values["input_sequence_tokens_sum", "org/model"] == 15
    assert values["output_sequence_tokens_bucket", "10.0", "org/model"] == 3
    assert values["request_duration_seconds_count", "org/model"] == 4
    assert values["dynamo_actor_mail",] == 3
    assert "typed-by-a-client" not in text.decode()


@pytest.mark.parametrize(
    ("status", "failed", "word"),
    [
        (200, None, ""), (200, EngineFailed("in a stream"), "internal"), (400, BadRequest("x"), "validation"),
        (429, None, "overload"), (503, Overloaded("x"), "overload"), (529, Overloaded("x"), "overload"),
        (504, TimedOut("x"), "response_timeout"), (404, NotFound("x"), "not_found"), (500, None, "internal"),
        (GONE, None, "cancelled"), (413, None, "validation"),
    ],
)  # fmt: skip
def test_words_for_failures(status: int, failed: RequestError | None, word: str) -> None:
    assert error_type(status, failed) == word


async def test_cached_tokens_are_counted_where_they_are_known(server, backend, call) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 5, {})
        if job.request.max_tokens == 1:
            sink.counted(0, cached_tokens=3)
        sink.text(0, "a", 1)
        sink.finish(0, "stop", 1, None)

    backend.play = play
    for limit in (1, 2):
        await call("POST", PATH, json=CHAT | {"max_tokens": limit})
    metrics = (await call("GET", "/metrics"))[1].decode()
    assert 'dynamo_frontend_cached_tokens_count{model="org/model"} 1.0' in metrics
    assert 'dynamo_frontend_cached_tokens_sum{model="org/model"} 3.0' in metrics


async def test_a_prompt_whose_tokens_nobody_knows_is_not_counted(server, backend, call) -> None:
    """An OpenAI server tells them at the end, which an answer that is ended here does not wait for."""

    async def play(job, sink) -> None:
        sink.started(1, 0, {})
        sink.text(0, "a", 1)
        sink.finish(0, "stop", 1, None)

    backend.play = play
    status, _, _ = await call("POST", PATH, json=CHAT)
    assert status == 200
    metrics = (await call("GET", "/metrics"))[1].decode()
    assert 'dynamo_frontend_input_sequence_tokens_count{model="org/model"} 0.0' in metrics
    assert 'dynamo_frontend_output_sequence_tokens_count{model="org/model"} 1.0' in metrics


async def test_the_metrics_prefix_is_a_setting(serve, connect) -> None:
    client = await connect(await serve(metrics_prefix="nv_llm_http_service"))
    client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    _, headers = await client.head()
    assert b"nv_llm_http_service_disconnected_clients 0.0" in await client.body(headers)


async def test_tokens_counted_together_are_gaps_per_token(server, backend, call) -> None:
    async def play(job, sink) -> None:
        sink.started(1, 1, {})
        sink.text(0, "a", 1)
        await asyncio.sleep(0.04)
        sink.text(0, "bcde", 4)
        sink.finish(0, "stop", 5)

    backend.play = play
    await call("POST", PATH, json=CHAT)
    gap = server.metrics.models["org/model"].gap
    assert sum(gap.counts) == 4
    assert 0.035 < gap.total < 1
