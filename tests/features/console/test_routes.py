"""The routes of the console: files, events, requests, logs and changes, on a real server with a daemon of the test."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from dynamod.features.console import pages
from dynamod.features.console.access import HEADER
from dynamod.features.console.api import CHANGES, ROOT

from .served import Served, record, row, serving, travelled

CHANGE = {HEADER.replace("-", "_"): "1"}
KEYS = """
- {name: boss, key: boss-key-000, admin: true, rpm: 600}
- {name: guest, key: guest-key-00}
"""


async def events(served: Served, path: str = f"{ROOT}/events", **headers: str) -> AsyncIterator[tuple[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(served.url + path, headers=headers) as response:
        assert response.status == 200, await response.text()
        name = ""
        async for line in response.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, msgspec.json.decode(line[6:])


async def first(found: AsyncIterator[tuple[str, Any]], wanted: str) -> Any:
    async with asyncio.timeout(10):
        async for name, data in found:
            if name == wanted:
                return data
    raise AssertionError(f"no {wanted}")


async def test_the_page_and_all_that_it_names_are_there_and_may_be_nothing_else() -> None:
    async with serving() as served:
        for path in ("/", "/console", "/console/"):
            status, _, headers = await served.ask(path)
            assert status == 200
            assert headers["Content-Security-Policy"].startswith("default-src 'self'; frame-ancestors 'none'")
            assert headers["X-Content-Type-Options"] == "nosniff"
        named = re.findall(r'(?:src|href)="(/console/[^"]+)"', (await served.ask("/"))[1])
        assert len(named) == 4
        assert 'rel="icon" href="/favicon.ico"' in (await served.ask("/"))[1]  # the server's, as of its other pages
        for path in named:
            assert (await served.ask(path))[0] == 200, path
        for name in pages.files():
            status, _, headers = await served.ask(f"/console/{name}")
            assert status == 200
            assert "default-src 'self'" in headers["Content-Security-Policy"]
            status, _, _ = await served.ask(f"/console/{name}", If_None_Match=headers["ETag"])
            assert status == 304
        for path in ("/console/../api.py", "/console/%2e%2e/api.py", "/console/vendor", "/console/none.js"):
            assert (await served.ask(path))[0] == 404, path


def test_the_page_sets_no_html_and_asks_only_its_own_server() -> None:
    for path in pages.STATIC.glob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "dangerouslySetInnerHTML",
            "document.write",
            "eval(",
        ):
            assert word not in text, (path.name, word)
        for module in re.findall(r"^import .* from '([^']+)';$", text, re.MULTILINE):
            assert module.startswith("./"), module
            assert (pages.STATIC / module).is_file(), module
        assert not re.search(r"(fetch|ask|askJson|post)\(['`]https?:", text)
    page = (pages.STATIC / "index.html").read_text()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]*src=)", page) == []


async def test_events_say_the_rights_and_then_the_state() -> None:
    async with serving() as served:
        served.daemon.look = msgspec.structs.replace(served.daemon.look, rows=[row("agg/Worker.0")])
        found = events(served)
        hello = await first(found, "hello")
        assert (hello["admin"], hello["keys"], hello["serves_models"]) == (False, False, True)
        assert "console_admin" in hello["needs"]
        top = await first(found, "top")
        assert [one["process"] for one in top["processes"]] == ["agg/Worker.0"]
        assert (await first(found, "status"))["problems"] == []
        await first(found, "point")
        await found.aclose()  # type: ignore[attr-defined]


async def test_without_a_reader_the_daemon_is_asked_nothing() -> None:
    async with serving() as served:
        await asyncio.sleep(0.1)
        assert served.daemon.begun == 0
        one, two = events(served), events(served)
        await first(one, "top")
        await first(two, "top")
        assert (served.daemon.asked, served.daemon.begun) == (1, 1)
        await one.aclose()  # type: ignore[attr-defined]
        await two.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            while served.daemon.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        again = events(served)
        await first(again, "top")
        assert served.daemon.begun == 2
        await again.aclose()  # type: ignore[attr-defined]


async def test_a_lost_daemon_is_said_and_comes_back() -> None:
    async with serving() as served:
        found = events(served)
        await first(found, "top")
        served.daemon.gone = True
        assert "ended" in (await first(found, "lost"))["why"]
        served.daemon.gone = False
        await first(found, "top")
        await found.aclose()  # type: ignore[attr-defined]


async def test_open_events_do_not_hold_the_end_of_the_server() -> None:
    async with serving() as served:
        found = events(served)
        await first(found, "top")
        served.api.end()
        async with asyncio.timeout(5):
            async for _ in found:  # ends
                pass
        await served.server.stop(grace=60.0)


async def test_requests_come_once_and_the_last_thousand_to_a_new_reader() -> None:
    async with serving() as served:
        for number in range(1100):
            served.recorder.take(record(number))
        served.recorder.take(record(5000, model=""))  # asked no model
        found = events(served)
        ended = (await first(found, "requests"))["ended"]
        assert [one["id"] for one in ended] == [f"request-{number}" for number in range(100, 1100)]
        served.recorder.take(record(1100, timeline=travelled()))
        (one,) = (await first(found, "requests"))["ended"]
        assert one["id"] == "request-1100"
        assert [name for name, _ in one["phases"]] == [
            *("receive", "queue", "preprocess", "route", "transport", "prefill", "decode", "write"),
        ]
        assert sum(took for _, took in one["phases"]) == pytest.approx(210)
        await found.aclose()  # type: ignore[attr-defined]


async def test_a_request_has_its_record_and_its_decisions() -> None:
    async with serving() as served:
        served.recorder.take(record(1))
        large = 2**63 + 5
        candidates = [{"instance": large, "overlap": 1, "requests": 0}]
        decision = {"chosen": large, "candidates": candidates, "tied": [], "excluded": [[large, "busy"]]}
        served.daemon.answers["requests/request-1/decision"] = [decision]
        status, found, _ = await served.ask(f"{ROOT}/requests/request-1")
        assert status == 200
        assert found["record"]["model"] == "sample"
        assert found["decisions"][0]["chosen"] == f"{large:x}"
        assert found["decisions"][0]["candidates"][0]["instance"] == f"{large:x}"
        status, found, _ = await served.ask(f"{ROOT}/requests/nothing")
        assert (status, found) == (200, {"record": None, "decisions": []})


@pytest.mark.parametrize("admin", [False, True])
async def test_logs_and_changes_without_keys(admin: bool) -> None:
    async with serving(admin=admin) as served:
        served.daemon.lines = [b"one", b"<b>two\xff"]
        if admin:
            found = events(served, f"{ROOT}/logs?component=Worker")
            assert await first(found, "line") == "one"
            assert await first(found, "line") == "<b>two�"
            await found.aclose()  # type: ignore[attr-defined]
        else:
            assert (await served.ask(f"{ROOT}/logs"))[0] == 403
            assert (await served.ask(f"{ROOT}/keys"))[0] == 403
        for name in CHANGES:
            status, _, _ = await served.ask(f"{ROOT}/do/{name}", "POST", {"component": "Worker"}, **CHANGE)
            assert status == (200 if admin else 403)
            assert (await served.ask(f"{ROOT}/do/{name}", "POST", {"component": "Worker"}))[0] == 403
            assert (await served.ask(f"{ROOT}/do/{name}", **CHANGE))[0] == 405
        assert [name for name, _ in served.daemon.changed] == (list(CHANGES) if admin else [])
        assert (await served.ask(f"{ROOT}/do/stop", "POST", {}, **CHANGE))[0] == 404
        if admin:
            assert (await served.ask(f"{ROOT}/do/scale", "POST", [1], **CHANGE))[0] == 400
            async with aiohttp.ClientSession() as session:
                asked = session.post(f"{served.url}{ROOT}/do/scale", data=b"{}", headers={HEADER: "1"})
                async with asked as response:
                    assert response.status == 415


async def test_another_name_of_this_machine_is_refused_everywhere() -> None:
    async with serving(admin=True) as served:
        for path in (ROOT, f"{ROOT}/events", f"{ROOT}/logs", f"{ROOT}/keys", f"{ROOT}/ask/planner", f"{ROOT}/whatif"):
            for more in ({"Host": "example.org"}, {"Origin": "http://example.org"}, {"X_Forwarded_For": "10.0.0.1"}):
                assert (await served.ask(path, **more))[0] == 403, (path, more)
        status, _, _ = await served.ask(f"{ROOT}/do/restart", "POST", {}, **CHANGE, Origin="http://example.org")
        assert status == 403
        assert served.daemon.changed == []


async def test_a_page_that_may_ask_models_may_not_use_the_console() -> None:
    async with serving(admin=True, allowed_origins=["*"]) as served:
        status, _, _ = await served.ask(ROOT, Origin="http://example.org")
        assert status == 403


async def test_with_keys_each_key_reads_its_own_and_an_admin_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    file.chmod(0o600)
    async with serving(admin=True, client_keys_file=str(file)) as served:
        boss, guest = {"Authorization": "Bearer boss-key-000"}, {"Authorization": "Bearer guest-key-00"}
        assert (await served.ask("/"))[0] == 200
        for path in (ROOT, f"{ROOT}/events", f"{ROOT}/keys", f"{ROOT}/requests/request-1"):
            assert (await served.ask(path))[0] == 401, path
        served.recorder.take(record(1, key="guest"))
        served.recorder.take(record(2, key="boss"))
        for who, seen in ((guest, ["request-1"]), (boss, ["request-1", "request-2"])):
            found = events(served, **who)
            assert [one["id"] for one in (await first(found, "requests"))["ended"]] == seen
            await found.aclose()  # type: ignore[attr-defined]
        assert (await served.ask(f"{ROOT}/requests/request-2", **guest))[0] == 404
        assert (await served.ask(f"{ROOT}/requests/request-1", **guest))[0] == 200
        for path in (f"{ROOT}/logs", f"{ROOT}/keys", f"{ROOT}/whatif?mode=kv"):
            assert (await served.ask(path, **guest))[0] == 403, path
        assert (await served.ask(f"{ROOT}/do/restart", "POST", {}, **guest, **CHANGE))[0] == 403
        assert (await served.ask(f"{ROOT}/do/restart", "POST", {"component": "W"}, **boss, **CHANGE))[0] == 200
        assert served.daemon.changed == [("restart", {"component": "W"})]
        keys = (await served.ask(f"{ROOT}/keys", **boss))[1]["keys"]
        assert {one["name"]: one["admin"] for one in keys} == {"boss": True, "guest": False}
        assert "key-0" not in msgspec.json.encode(keys).decode()


async def test_there_are_not_more_than_so_many_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamod.features.console.api.READERS", 1)
    async with serving() as served:
        found = events(served)
        await first(found, "hello")
        assert (await served.ask(f"{ROOT}/events"))[0] == 503
        await found.aclose()  # type: ignore[attr-defined]


async def test_questions_without_an_answer_are_empty() -> None:
    async with serving() as served:
        assert (await served.ask(f"{ROOT}/ask/planner"))[:2] == (200, [])
        assert (await served.ask(f"{ROOT}/ask/status"))[0] == 404
        status, error, _ = await served.ask(f"{ROOT}/whatif?mode=wrong")
        assert status == 400
        assert "round-robin" in error["error"]["message"]
