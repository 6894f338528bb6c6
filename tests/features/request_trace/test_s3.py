"""The sink s3, at a server that checks signatures as S3 does."""

import gzip
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.features.request_trace.rows import read_rows
from dynamod.features.request_trace.s3 import S3Rows
from dynamod.features.request_trace.settings import TraceSettings
from dynamod.message.errors import UserError

from .bucket import Bucket
from .test_request_trace import BODY, ask

NAME = re.compile(r"rows/run/a/date=\d{4}-\d\d-\d\d/hour=\d\d/\d{4}-(\d{4})-pod-7-[0-9a-f]{32}\.jsonl\.gz")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with Bucket().running() as found:
        for name, value in {**found.environment, "POD_NAME": "pod-7"}.items():
            monkeypatch.setenv(name, value)
        yield found


def test_each_call_puts_an_object_with_the_name_that_dynamo_gives(bucket: Bucket) -> None:
    sink = S3Rows("rows", "eu-west-1", "/run/a/")
    assert sink.append([b'{"n":1}\n', b'{"n":2}\n']) == 2
    assert sink.append([b'{"n":3}\n']) == 1
    assert sink.failure == ""
    sink.close()
    assert bucket.refused == []
    assert bucket.regions == {"eu-west-1"}
    names = sorted(bucket.objects)
    assert [NAME.fullmatch(name)[1] for name in names] == ["0000", "0001"]  # type: ignore[index]
    assert [gzip.decompress(bucket.objects[name]) for name in names] == [b'{"n":1}\n{"n":2}\n', b'{"n":3}\n']
    assert {*bucket.kinds.values()} == {"application/gzip"}
    assert str(sink.path) == "s3:rows/run/a"


def test_what_the_store_does_not_take_is_not_written(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = S3Rows("rows")
    bucket.status = 403
    assert sink.append([b"{}\n"]) == 0
    assert sink.failure
    assert "\n" not in sink.failure
    bucket.status = 200
    assert sink.append([b"{}\n"]) == 1, "the next object"
    assert sink.failure == ""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert S3Rows("rows").append([b"{}\n"]) == 0
    assert bucket.refused == ["the signature is wrong"]


async def test_rows_of_requests_are_objects_and_none_is_lost(
    bucket: Bucket, house: Any, serve: Any, until: Any, tmp_path: Path
) -> None:
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    settings = {"request_trace_s3_bucket": "rows", "request_trace_s3_flush_interval_ms": 300}
    url = str(await serve(request_trace=True, request_trace_sinks="s3", **settings))
    assert await ask(url, *[BODY] * 3) == [200] * 3
    await until(lambda: bucket.objects)
    assert await ask(url, BODY) == [200]
    await until(lambda: len(rows(bucket, tmp_path)) == 4)
    assert len(bucket.objects) < 4, "rows of an interval are one object"
    assert {row["event_type"] for row in rows(bucket, tmp_path)} == {"request_end"}


def rows(bucket: Bucket, folder: Path) -> list[dict[str, Any]]:
    files = []
    for number, data in enumerate([*bucket.objects.values()]):
        files.append(folder / f"{number}.jsonl.gz")
        files[-1].write_bytes(data)
    return [dict(row) for row in read_rows(files)]


def test_mistakes_are_said_before_the_frontend_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"request_trace_s3_bucket: .* name of a bucket"):
        S3Rows("")
    with pytest.raises(UserError, match=r"'s4' is not known") as failed:
        _ = TraceSettings(request_trace_sinks="file,s4").sinks
    assert failed.value.hint == "known: file, stderr, nats, otel, s3"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="obstore is not installed") as failed:
        S3Rows("rows")
    assert "trace" in failed.value.hint
    assert json.dumps([*TraceSettings(request_trace_sinks="S3, file").sinks]) == '["s3", "file"]'
