"""One request of a batch, beside requests of clients: how it is told to the backend, and when it is asked again."""

import json
from typing import Any

import msgspec
import pytest

from dynamod.features.batches.ask import PRIORITY, Asker, Later
from dynamod.features.batches.input import RawEntry
from dynamod.http.records import RecordReader, Records
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.endpoint import Frontend
from dynamod.message.errors import EngineFailed, Overloaded
from dynamod.observe.records import RequestRecord

CHAT = "/v1/chat/completions"
BODY = {"model": "org/model", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def asker(server: Any, backend: Any) -> Asker:
    frontend = Frontend(FrontendSettings(), backend)
    return Asker(frontend, server.keys, server.metrics, {CHAT: ChatCompletions()})


async def asked(asker: Asker, **fields: Any) -> tuple[int, dict[str, Any]]:
    status, body = await asker.ask(
        RawEntry({"custom_id": "a"}, CHAT, json.dumps({**BODY, **fields}).encode()), "", "batch_req_1", 0
    )
    return status, json.loads(bytes(body)) if isinstance(body, msgspec.Raw) else body


async def test_lines_wait_behind_all_others_and_are_counted(asker: Asker, backend: Any, server: Any) -> None:
    hints = {"agent_hints": {"priority": 7}}
    status, body = await asked(asker, nvext=hints)
    assert (status, body["choices"][0]["message"]["content"]) == (200, backend.text)
    [job] = backend.jobs
    assert (job.id, job.priority) == ("batch_req_1", PRIORITY)
    meter = server.metrics.model("org/model")
    assert meter.inflight == meter.queued == 0
    assert sum(meter.requests.values()) == 1


async def test_a_line_has_a_record_where_a_feature_reads_records(asker: Asker, server: Any) -> None:
    found: list[RequestRecord] = []

    class Reader(RecordReader):
        body_bytes, headers = 1000, ("x-request-id",)

        def take(self, record: RequestRecord) -> None:
            found.append(record)

        async def close(self) -> None: ...

    reader = Reader()
    server.metrics.records = Records([reader], (), lambda: ("one", "agg/ingress.0"))
    assert (await asked(asker))[0] == 200
    assert (await asked(asker, model="none"))[0] == 404
    await server.metrics.records.close()  # records are made soon after the end
    one, missing = found
    assert (one.id, one.client, one.path, one.status, one.finish) == ("batch_req_1", "", CHAT, 200, "stop")
    assert json.loads(one.request_body or b"") == BODY
    assert (missing.status, missing.error) == (404, "model_not_found")
    server.metrics.records = None


async def test_a_route_that_is_not_served_is_the_answer_of_its_line(asker: Asker) -> None:
    status, body = await asker.ask(RawEntry({"custom_id": "a"}, "/v1/embeddings", b"{}"), "", "batch_req_1", 0)
    assert isinstance(body, dict)
    assert (status, body["error"]["message"]) == (404, "/v1/embeddings is not served here")


async def test_what_is_asked_again_and_what_is_not(asker: Asker, backend: Any, server: Any) -> None:
    backend.refuse = Overloaded("no room", retry_after=3)
    with pytest.raises(Later) as later:
        await asked(asker)
    assert later.value.seconds == 3
    backend.refuse = EngineFailed("it broke")
    assert (await asked(asker))[0] == 502
    status, body = await asked(asker, top_p=7)
    assert (status, body["error"]["param"]) == (400, "top_p")
    backend.refuse = None

    async def bug(*_: Any) -> None:
        raise ValueError("a bug")

    backend.start = bug
    status, body = await asked(asker)
    assert (status, body["error"]["code"]) == (500, "internal_error")
    meter = server.metrics.model("org/model")
    assert meter.inflight == meter.queued == 0
