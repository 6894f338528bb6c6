"""/v1/files and /v1/batches by OpenAI's SDK, on the real stack."""

import asyncio
import json
import os
import re
import stat
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

import dynamod
from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.engine import Mocker

CHAT = "/v1/chat/completions"
README = Path(dynamod.__file__).parent / "features/batches/README.md"
ENDED = ("completed", "failed", "cancelled", "expired")
Line = dict[str, Any]


def line(name: str, text: str = "hello", url: str = CHAT, **more: Any) -> Line:
    body = {"model": "sample", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
    if url != CHAT:
        body = {"model": "sample", "prompt": text, "max_tokens": 4, **more}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def written(rows: list[Any]) -> bytes:
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "batches"


@asynccontextmanager
async def client_of(url: str, key: str = "unused") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def url(house: Any, serve: Any, words: Any, until: Any, folder: Path) -> str:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    found: str = await serve(batches_dir=str(folder))
    return found


async def begun(client: openai.AsyncOpenAI, rows: list[Any], endpoint: Any = CHAT, **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", written(rows)), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=more.pop("window", "24h"), **more
    )


async def ended(client: openai.AsyncOpenAI, name: str, done: Callable[[Any], bool] | None = None) -> Any:
    async with asyncio.timeout(20):
        while True:
            batch = await client.batches.retrieve(name)
            if done(batch) if done is not None else batch.status in ENDED:
                return batch
            await asyncio.sleep(0.05)


async def rows_of(client: openai.AsyncOpenAI, name: str | None) -> list[Any]:
    assert name is not None
    text = (await client.files.content(name)).text
    return [json.loads(one) for one in text.splitlines()]


async def test_a_batch_from_upload_to_answers(url: str, folder: Path) -> None:
    async with client_of(url) as client:
        rows = [line(f"r{n}", f"text {n}") for n in range(40)]
        batch = await begun(client, rows, metadata={"who": "me"})
        assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"who": "me"})
        batch = await ended(client, batch.id)
        assert batch.status == "completed", batch
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed, batch.error_file_id) == (40, 40, 0, None)
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        found = {row["custom_id"]: row for row in await rows_of(client, batch.output_file_id)}
        assert found.keys() == {row["custom_id"] for row in rows}
        assert len({row["id"] for row in found.values()}) == 40
        one = found["r7"]["response"]
        assert (one["status_code"], one["body"]["object"], found["r7"]["error"]) == (200, "chat.completion", None)
        live = await client.chat.completions.create(**rows[7]["body"])
        assert one["body"]["choices"][0]["message"]["content"] == live.choices[0].message.content
        output = await client.files.retrieve(batch.output_file_id)
        assert (output.purpose, output.bytes) == ("batch_output", (folder / f"files/{output.id}.data").stat().st_size)
        assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
        assert [one.id async for one in client.files.list(purpose="batch_output")] == [output.id]
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_lines_that_are_wrong_have_their_numbers(url: str) -> None:
    async with client_of(url) as client:
        rows = [
            line("good"),
            "{",
            "",
            line("other", url="/v1/completions"),
            line("good"),
            line("range", temperature=9),
            line("gone", model="none"),
        ]
        batch = await ended(client, (await begun(client, rows)).id)
        assert batch.status == "completed"
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (6, 1, 5)
        assert [one.line for one in batch.errors.data] == [2, 4, 5]
        errors = await rows_of(client, batch.error_file_id)
        wrong = {row["error"]["line"]: row["error"]["message"] for row in errors if row["error"]}
        assert wrong.keys() == {2, 4, 5}
        assert wrong[2].startswith("line 2: not JSON")
        assert "POST /v1/completions cannot be asked" in wrong[4]
        assert "the custom_id of line 1" in wrong[5]
        refused = {row["custom_id"]: row["response"] for row in errors if row["response"]}
        assert refused["range"]["status_code"] == 400
        assert refused["range"]["body"]["error"]["param"] == "temperature"
        assert refused["gone"]["status_code"] == 404
        [good] = await rows_of(client, batch.output_file_id)
        assert good["custom_id"] == "good"
        batch = await ended(client, (await begun(client, ["{", "[]"])).id)
        assert (batch.status, batch.output_file_id) == ("failed", None)
        assert [(one.code, one.line) for one in batch.errors.data] == [
            *(("no_requests", None), ("invalid_request", 1), ("invalid_request", 2)),
        ]


@pytest.mark.parametrize(("endpoint", "kind"), [("/v1/completions", "text_completion"), ("/v1/responses", "response")])
async def test_other_endpoints(url: str, endpoint: str, kind: str) -> None:
    async with client_of(url) as client:
        row = line("a", url=endpoint)
        if endpoint == "/v1/responses":
            row["body"] = {"model": "sample", "input": "hello", "max_output_tokens": 4}
        batch = await ended(client, (await begun(client, [row], endpoint)).id)
        assert batch.status == "completed", batch
        [answer] = await rows_of(client, batch.output_file_id)
        assert answer["response"]["body"]["object"] == kind


async def test_cancelled_in_the_middle(url: str, house: Any) -> None:
    async with client_of(url) as client:
        rows = [line("quick"), *[line(f"slow{n}", "word " * 200, max_tokens=100_000 // 50) for n in range(60)]]
        batch = await begun(client, rows)
        file = batch.input_file_id
        await ended(client, batch.id, lambda one: one.status == "in_progress")
        with pytest.raises(openai.ConflictError, match="is read by batch"):
            await client.files.delete(file)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        batch = await ended(client, batch.id)
        assert (batch.status, batch.request_counts.total) == ("cancelled", 61)
        assert batch.request_counts.completed < 61
        with pytest.raises(openai.ConflictError, match="cancelled already"):
            await client.batches.cancel(batch.id)
        assert (await client.files.delete(file)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file)
    async with asyncio.timeout(10):
        while house.members[0].open:  # noqa: ASYNC110 - counted by a worker
            await asyncio.sleep(0.02)


async def test_what_passes_its_window(url: str, folder: Path) -> None:
    async with client_of(url) as client:
        file = await client.files.create(file=("in.jsonl", written([line("a"), "{", line("b")])), purpose="batch")
        batch = await begun(client, [line("a", max_tokens=1)])
        done = await ended(client, batch.id)
        record = json.loads((folder / f"batches/{done.id}.json").read_text())
        name = "batch_" + "0" * 32
        record["batch"] |= {"id": name, "status": "in_progress", "expires_at": 1, "input_file_id": file.id}
        record |= {"output": "file-" + "1" * 32, "error": "file-" + "2" * 32, "ending": None}
        (folder / f"batches/{name}.json").write_text(json.dumps(record))
        batch = await ended(client, name)
        assert (batch.status, batch.output_file_id) == ("expired", None)
        assert batch.request_counts.failed == batch.request_counts.total == 3
        rows = await rows_of(client, batch.error_file_id)
        assert sorted((row["custom_id"] or "", row["error"]["code"]) for row in rows) == [
            *(("", "invalid_request"), ("a", "batch_expired"), ("b", "batch_expired")),
        ]


async def test_files_for_other_purposes_are_kept_and_no_input_of_batches(url: str) -> None:
    async with client_of(url) as client:
        batched = await client.files.create(file=("in.jsonl", written([line("a")])), purpose="batch")
        kept = await client.files.create(file=("notes.txt", b"notes"), purpose="user_data")
        assert (kept.purpose, (await client.files.content(kept.id)).content) == ("user_data", b"notes")
        assert [one.id async for one in client.files.list(purpose="user_data")] == [kept.id]
        assert {one.id async for one in client.files.list()} >= {kept.id, batched.id}
        with pytest.raises(openai.BadRequestError, match="was not uploaded for a batch"):
            await client.batches.create(input_file_id=kept.id, endpoint="/v1/chat/completions", completion_window="24h")


async def test_requests_that_are_refused(url: str) -> None:
    async with client_of(url) as client, aiohttp.ClientSession(url) as session:
        good = await client.files.create(file=("in.jsonl", written([line("a")])), purpose="batch")
        for wrong in ("../../etc/passwd", "file-..%2f..%2fx", "file-" + "0" * 32, "x" * 5000):
            for path in (f"/v1/files/{wrong}", f"/v1/files/{wrong}/content", f"/v1/batches/{wrong}"):
                async with session.get(path) as response:
                    assert response.status == 404, path
        wrong_purpose: Any = "pleasure"
        with pytest.raises(openai.BadRequestError, match=r"`purpose` is 'pleasure'.*assistants, batch, evals"):
            await client.files.create(file=("in.jsonl", b"x"), purpose=wrong_purpose)
        with pytest.raises(openai.BadRequestError, match="must not be empty"):
            await client.files.create(file=("in.jsonl", b""), purpose="batch")
        for fields, said in (
            ({"completion_window": "1d"}, "1h to 168h"),
            ({"completion_window": "169h"}, "1h to 168h"),
            ({"endpoint": "/v1/messages"}, "endpoint"),
            ({"metadata": {"a": 1}}, "metadata"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "seconds"),
            ({"output_expires_after": {"anchor": "ended_at", "seconds": 3600}}, "anchor"),
            ({"output_expires_after": {"anchor": "created_at"}}, "seconds"),
        ):
            asked: Any = {"input_file_id": good.id, "endpoint": CHAT, "completion_window": "24h", **fields}
            with pytest.raises(openai.BadRequestError, match=said):
                await client.batches.create(**asked)
        with pytest.raises(openai.NotFoundError, match="no file"):
            await client.batches.create(input_file_id="file-x", endpoint=CHAT, completion_window="24h")
        async with session.post(
            "/v1/files", data=b"--x\r\nnothing", headers={"Content-Type": "multipart/form-data"}
        ) as no:
            assert no.status == 400, await no.text()
        for name in ('filename="a\0b"', "filename*=UTF-8''a%00b"):
            part = f'--x\r\nContent-Disposition: form-data; name="file"; {name}\r\n\r\nx\r\n--x--\r\n'
            typed = {"Content-Type": "multipart/form-data; boundary=x"}
            async with session.post("/v1/files", data=part.encode(), headers=typed) as no:
                assert no.status == 400, await no.text()
                assert (await no.json())["error"]["param"] == "file"
        async with session.post("/v1/files", json={}) as no:
            assert no.status == 415
        assert [one.id async for one in client.files.list()] == [good.id], "nothing of the others was kept"


async def test_a_route_of_a_feature_that_is_off(
    house: Any, serve: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-embeddings")
    await house.start()
    async with client_of(await serve(batches_dir=str(folder))) as client:
        with pytest.raises(openai.BadRequestError, match="belongs to the feature 'embeddings', which is off"):
            await begun(client, [line("a")], "/v1/embeddings")
        assert (await begun(client, [line("a")])).status == "validating"


async def test_keys_see_what_is_theirs(house: Any, serve: Any, words: Any, until: Any, folder: Path) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    keys = folder.parent / "keys.yaml"
    keys.write_text(
        "- {name: team, key: secret-team, rpm: 1000}\n- {name: none, key: secret-none, models: [other]}\n"
        "- {name: operator, key: secret-admin, admin: true}\n"
    )
    url = await serve(batches_dir=str(folder), api_keys="one,two", client_keys_file=str(keys))
    for own, other in (("one", "two"), ("secret-team", "one")):
        async with client_of(url, own) as client, client_of(url, other) as stranger:
            batch = await ended(client, (await begun(client, [line("a")])).id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 1)
            for asked in (
                stranger.batches.retrieve(batch.id),
                stranger.batches.cancel(batch.id),
                stranger.files.content(batch.output_file_id),
                stranger.files.delete(batch.input_file_id),
                stranger.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            assert batch.id not in [one.id async for one in stranger.batches.list()]
            assert batch.input_file_id not in [one.id async for one in stranger.files.list()]
            async with client_of(url, "secret-admin") as admin:
                assert batch.id in [one.id async for one in admin.batches.list()]
                assert batch.input_file_id in [one.id async for one in admin.files.list()]
                assert len(await rows_of(admin, batch.output_file_id)) == 1
                again = await admin.batches.create(
                    input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
                )
                assert (await ended(admin, again.id)).status == "completed"
                with pytest.raises(openai.NotFoundError):
                    await client.batches.retrieve(again.id)
                await admin.files.delete(batch.input_file_id)
                with pytest.raises(openai.NotFoundError):
                    await client.files.retrieve(batch.input_file_id)
    async with client_of(url, "secret-none") as client:
        batch = await ended(client, (await begun(client, [line("a")])).id)
        [row] = await rows_of(client, batch.error_file_id)
        assert row["response"]["status_code"] == 404, "its key does not allow the model"
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as response:
        text = await response.text()
    assert 'dynamo_frontend_key_tokens_total{key="team",type="completion"} 4.0' in text
    assert "secret" not in "".join(path.read_text() for path in folder.rglob("*.json"))


async def metrics_of(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as response:
        rows = [row.rpartition(" ") for row in (await response.text()).splitlines()]
    return {
        name.removeprefix("dynamo_frontend_"): float(value)
        for name, _, value in rows
        if "_batch" in name and "# " not in name
    }


async def test_metrics_of_batches(url: str, house: Any, folder: Path) -> None:
    done, failed = 'batch_requests_total{status="completed"}', 'batch_requests_total{status="failed"}'
    assert await metrics_of(url) == {"batches_open": 0, "batch_files_bytes": 0, done: 0, failed: 0}
    section = README.read_text().split("## Metrics\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {
        name.partition("{")[0] for name in await metrics_of(url)
    }
    async with client_of(url) as client:
        batch = await ended(client, (await begun(client, [line("a"), line("b"), line("c", n=1000)])).id)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
        found = await metrics_of(url)
        size = sum(path.stat().st_size for path in (folder / "files").glob("*.data"))
        assert found == {"batches_open": 0, "batch_files_bytes": size, done: 2, failed: 1}
        house.leave(house.members[0])
        waiting = await begun(client, [line("d")])
        assert (await metrics_of(url))["batches_open"] == 1
        await client.batches.cancel(waiting.id)
        await ended(client, waiting.id)
        assert (await metrics_of(url))["batches_open"] == 0


async def test_two_frontends_share_a_folder_and_its_bounds(
    house: Any, serve: Any, words: Any, until: Any, folder: Path
) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    settings = {"batches_dir": str(folder), "batches_store_mb": 0.125, "batches_inflight": 2}
    urls = [await serve(**settings), await serve(**settings)]
    off = await serve()
    async with client_of(urls[0]) as client, client_of(urls[1]) as other, client_of(off) as none:
        with pytest.raises(openai.NotFoundError, match="batches_dir"):
            await none.files.list()
        with pytest.raises(openai.APIStatusError, match=r"0\.125 MB") as error:
            await client.files.create(file=("in.jsonl", b"x" * 140_000), purpose="batch")
        assert error.value.status_code == 413
        assert [path.name for path in (folder / "files").iterdir()] == []
        batch = await begun(client, [line(f"r{n}") for n in range(30)])
        most = 0
        async with asyncio.timeout(20):
            while (found := await other.batches.retrieve(batch.id)).status not in ENDED:
                most = max(most, house.members[0].open)
                await asyncio.sleep(0.005)
        assert (found.status, found.request_counts.completed) == ("completed", 30)
        assert most <= 2
        assert len(await rows_of(other, found.output_file_id)) == 30
        assert len(house.members[0].engine.requests) == 30, "each was asked once"


async def test_vectors_and_a_model_that_comes_later(house: Any, serve: Any, folder: Path, until: Any) -> None:
    def quick(options: EngineOptions, spawn: Spawn) -> Mocker:
        return Mocker(EngineOptions(options.name, options.path, arguments={"speedup_ratio": 0}), spawn)

    await house.start()
    url = await serve(batches_dir=str(folder))
    async with client_of(url) as client:
        body = {"model": "sample", "input": ["a", "b"]}
        row = {"custom_id": "v", "method": "POST", "url": "/v1/embeddings", "body": body}
        batch = await begun(client, [row], "/v1/embeddings")
        await ended(client, batch.id, lambda one: one.status == "in_progress")
        await house.worker(quick)
        batch = await ended(client, batch.id)
        assert batch.status == "completed", batch
        [answer] = await rows_of(client, batch.output_file_id)
        live = await client.embeddings.create(**body, encoding_format="float")
        assert [one["embedding"] for one in answer["response"]["body"]["data"]] == [one.embedding for one in live.data]


async def test_batches_that_wait_for_others_are_cancelled_at_once(url: str) -> None:
    async with client_of(url) as client:
        rows = [line(f"slow{n}", "word " * 200, max_tokens=2000) for n in range(100)]
        made = [await begun(client, rows) for _ in range(5)]
        queued = made[-1]
        await ended(client, made[0].id, lambda one: one.status == "in_progress")
        assert (await client.batches.retrieve(queued.id)).status == "validating"
        await client.batches.cancel(queued.id)
        assert (await ended(client, queued.id)).status == "cancelled"
        assert (await client.batches.retrieve(made[0].id)).status == "in_progress", "it was to wait for this one"
        for batch in made[:4]:
            await client.batches.cancel(batch.id)
        for batch in made[:4]:
            assert (await ended(client, batch.id)).status == "cancelled"


async def test_an_upload_of_unknown_length_is_bounded(house: Any, serve: Any, folder: Path) -> None:
    await house.start()
    url = await serve(batches_dir=str(folder), batches_store_mb=0.25)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b"x" * 65536

    async with aiohttp.ClientSession(url) as session:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", endless(), filename="../../x.jsonl")
        try:
            async with session.post("/v1/files", data=form) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # it went on sending when the connection was closed
    assert sent < 50 * 1024 * 1024
    assert list((folder / "files").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
async def test_a_full_disk_is_said_and_nothing_is_left(
    house: Any, serve: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", folder], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        await house.start()
        async with client_of(await serve(batches_dir=str(folder))) as client:
            with pytest.raises(openai.APIStatusError) as full:
                await client.files.create(file=("in.jsonl", b"x" * 1_000_000), purpose="batch")
            assert (full.value.status_code, full.value.code) == (507, "disk_full")
            assert "batches_dir" in str(full.value)
            assert [path.name for path in folder.rglob("*") if path.is_file()] == ["format"]
            kept = await client.files.create(file=("in.jsonl", written([line("a")])), purpose="batch")
            room = os.statvfs(folder)
            with (folder / "filler").open("wb", buffering=0) as file:
                file.write(b"x" * (room.f_bavail * room.f_frsize))
            with pytest.raises(openai.APIStatusError) as full:
                await client.batches.create(input_file_id=kept.id, endpoint=CHAT, completion_window="24h")
            assert full.value.status_code == 507
            assert not list((folder / "batches").iterdir())
        assert "Traceback" not in caplog.text
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
