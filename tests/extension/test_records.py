"""Records of requests, read by a toy feature."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from dynamod.extension.feature import Feature
from dynamod.http.records import RecordReader
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import Frontend
from dynamod.ingress.api.table import make_server
from dynamod.observe.records import RequestRecord
from tests.ingress.conftest import FakeBackend
from tests.ports import listener

BODY = {"model": "org/model", "messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"


class Diary(RecordReader):
    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.closed = False

    def take(self, record: RequestRecord) -> None:
        self.records.append(record)
        if record.id == "breaks":
            raise RuntimeError("a mistake of the reader")

    async def close(self) -> None:
        self.closed = True


class Reading:
    """The toy: its reader, or none."""

    def __init__(self) -> None:
        self.diary: Diary | None = Diary()
        self.feature = Feature("diary", "", records=self.reader)

    def reader(self, frontend: Frontend, server: Server, where: Callable[[], tuple[str, str]]) -> Diary | None:
        assert (frontend.settings, where()) == (server.settings, ("one", "agg/ingress.0"))
        return self.diary


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """No other feature is installed, and all are on."""
    toy = Reading()
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    for module in ("dynamod.extension.installed", "dynamod.ingress.api.table"):
        monkeypatch.setattr(f"{module}.installed", lambda: {toy.feature.name: toy.feature})
    return toy


async def asked(server: Server, *requests: dict[str, Any]) -> list[int]:
    await server.start(listener(), spawn=asyncio.create_task)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            found = []
            for one in requests:
                async with session.request(**{"method": "POST", "url": CHAT, **one}) as answer:
                    await answer.read()
                    found.append(answer.status)
            return found
    finally:
        await server.stop(0)


def made(**settings: Any) -> Server:
    return make_server(
        FrontendSettings(host="127.0.0.1", port=0, **settings), FakeBackend(), where=lambda: ("one", "agg/ingress.0")
    )


async def test_each_request_has_a_record(toy: Reading) -> None:
    server = made(api_keys="sesame", trusted_proxies="127.0.0.1")
    headers = {"Authorization": "Bearer sesame", "x-request-id": "mine", "X-Forwarded-For": "198.51.100.7"}
    statuses = await asked(
        server,
        {"json": BODY, "headers": headers},
        {"json": BODY | {"stream": True}, "headers": headers},
        {"json": BODY | {"model": "none"}, "headers": headers},
        {"json": BODY},
        {"method": "GET", "url": "/live"},
    )
    assert statuses == [200, 200, 404, 401, 200]
    assert toy.diary is not None
    assert toy.diary.closed
    one, stream, missing, without, live = toy.diary.records
    assert (one.id, one.client, one.method, one.path, one.endpoint) == (
        "mine",
        "198.51.100.7",
        "POST",
        CHAT,
        "chat_completions",
    )
    assert (one.model, one.status, one.error, one.finish, one.stream) == ("org/model", 200, "", "stop", False)
    assert one.completion_tokens == stream.completion_tokens > 0
    assert one.first_ms is not None
    assert 0 < one.first_ms <= one.duration_ms
    assert one.key.startswith("key:")
    assert "sesame" not in repr(toy.diary.records)
    assert (one.node, one.process, one.request_body) == ("one", "agg/ingress.0", None)
    assert (stream.stream, stream.status) == (True, 200)
    assert (missing.status, missing.error, missing.model) == (404, "model_not_found", "")
    assert (without.status, without.error, without.key, without.client) == (401, "invalid_api_key", "", "127.0.0.1")
    assert (live.path, live.status) == ("/live", 200)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_bodies_where_a_reader_wants_them(toy: Reading, connection: str) -> None:
    assert toy.diary is not None
    toy.diary.body_bytes = 10_000
    headers = {"Connection": connection}
    long = BODY | {"user": "x" * 10_000}
    requests = [{"json": one, "headers": headers} for one in (BODY, BODY | {"stream": True}, long)]
    assert await asked(made(), *requests) == [200, 200, 200]
    one, stream, large = toy.diary.records
    assert b'"hello"' in (one.request_body or b"")
    assert b'"chat.completion"' in (one.response_body or b"")
    frames = stream.response_body or b""
    assert frames.startswith(b"data: {")
    assert frames.endswith(b"data: [DONE]\n\n")
    assert (large.request_body, large.response_body is not None) == (None, True)


async def test_headers_and_tokens_where_a_reader_wants_them(toy: Reading) -> None:
    assert toy.diary is not None
    toy.diary.headers, toy.diary.tokens = ("x-dynamo-session-id", "thread-id"), True
    assert await asked(made(), {"json": BODY, "headers": {"X-Dynamo-Session-ID": "one"}}) == [200]
    (record,) = toy.diary.records
    assert record.headers == {"x-dynamo-session-id": "one"}
    (choice,) = record.choices
    assert (choice.index, choice.finish, choice.tokens) == (0, "stop", record.completion_tokens)


async def test_a_reader_that_fails_changes_no_answer(toy: Reading, caplog: pytest.LogCaptureFixture) -> None:
    assert await asked(made(), {"json": BODY, "headers": {"x-request-id": "breaks"}}) == [200]
    assert "request id=breaks: a reader of its record failed" in caplog.text


async def test_without_readers_no_record_is_made(toy: Reading) -> None:
    toy.diary = None
    server = made()
    assert server.metrics.records is None
    assert await asked(server, {"json": BODY}) == [200]
    backend = FakeBackend()
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), backend, where=lambda: ("one", "agg/ingress.0"))
    await asked(server, {"json": BODY})
    assert [job.timed for job in backend.jobs] == [False]
