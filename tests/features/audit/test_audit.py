"""The audit log in a frontend: settings, counts, full disks, workers of a request."""

import asyncio
import json
import os
import socket
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from dynamod.control.names import UnknownName
from dynamod.control.table import STATUS, STOP
from dynamod.extension.command import CommandCall, Peer
from dynamod.extension.settings import extended
from dynamod.features.audit.daemon import audits
from dynamod.features.audit.part import AuditedCommands
from dynamod.features.audit.settings import AuditSettings, default_folder
from dynamod.graph.graph import FRONTEND
from dynamod.graph.typed import validate
from dynamod.http import records
from dynamod.http.settings import FrontendSettings, from_environment
from dynamod.ingress.api.table import make_server
from dynamod.message.errors import UserError

CHAT = "/v1/chat/completions"
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


async def ask(url: str, *bodies: dict[str, Any]) -> list[int]:
    async with aiohttp.ClientSession(url) as session:
        found = []
        for body in bodies:
            async with session.post(CHAT, json=body) as answer:
                await answer.read()
                found.append(answer.status)
        return found


async def counts(url: str) -> dict[str, int]:
    """Lines by outcome, as /metrics has them."""
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        lines = [line for line in (await answer.text()).splitlines() if line.startswith("dynamo_frontend_audit_lines")]
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}


def entries(folder: Path) -> list[dict[str, Any]]:
    """Whole lines: a part of a large one may be there already."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().split("\n")[:-1]]


async def test_it_is_off_by_default(house: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    await house.start()
    await house.worker()
    url = await serve()
    await ask(url, BODY)
    assert (await counts(url), (tmp_path / "dynamod").exists()) == ({}, False)


async def test_each_request_has_a_line(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    folder = tmp_path / "audit"
    url = await serve(audit_dir=str(folder), audit_bodies=True, audit_redact=["User"], audit_status_routes=False)
    asked = [{**BODY, "user": "me"}, {**BODY, "stream": True, "n": 2}, {**BODY, "model": "none"}, {"model": 1}]
    assert await ask(url, *asked) == [200, 200, 404, 400]
    await until(lambda: len(entries(folder)) == 4)
    one, stream, missing, wrong = entries(folder)
    assert one["workers"] == stream["workers"] != []
    assert (one["migrations"], stream["migrations"], missing["workers"]) == (0, 0, [])
    assert one["queue_ms"] <= one["first_ms"] <= one["duration_ms"]
    assert one["request_body"] == {**BODY, "user": "***"}
    assert one["response_body"]["choices"][0]["message"]["content"]
    assert stream["response_body"][0]["object"] == "chat.completion.chunk"
    assert (missing["error"], wrong["status"]) == ("model_not_found", 400)
    assert await counts(url) == {"written": 4, "dropped": 0}
    (file,) = folder.iterdir()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)) == (0o600, 0o700)


async def test_large_bodies_become_lines_in_a_thread(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    url = await serve(audit_dir=str(tmp_path / "audit"), audit_bodies=True, audit_body_kb=64.0)
    notes = [{**BODY, "user": "x" * 30_000}, {**BODY, "user": "x" * 70_000}]
    assert await ask(url, *notes) == [200, 200]
    await until(lambda: len(entries(tmp_path / "audit")) == 2)
    sizes = sorted(len(str(one.get("request_body", ""))) for one in entries(tmp_path / "audit"))
    assert sizes[0] == 0
    assert sizes[1] > 30_000


async def test_requests_wait_for_each_other_and_not_for_ever(
    house: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PAUSE_S", 600.0)
    monkeypatch.setattr(records, "AT_ONCE", 4)
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    folder = tmp_path / "audit"
    server = make_server(
        extended(FrontendSettings)(host="127.0.0.1", port=0, audit_dir=str(folder), audit_bodies=True), house.backend
    )
    await server.start(socket.create_server(("127.0.0.1", 0)), spawn=asyncio.create_task)
    url = f"http://127.0.0.1:{server.port}"
    assert await ask(url, BODY, BODY, BODY) == [200] * 3
    await asyncio.sleep(0.2)
    assert not list(folder.glob("*.jsonl")), "three wait for a fourth one"
    assert await ask(url, BODY) == [200]
    await until(lambda: len(entries(folder)) == 4)
    assert await ask(url, BODY, {**BODY, "user": "x" * 70_000}) == [200] * 2
    await until(lambda: len(entries(folder)) == 6)  # a large one does not wait, nor what ended before it
    assert await ask(url, BODY, BODY) == [200] * 2
    await server.stop(0)
    assert len(entries(folder)) == 8, "none waits at the end"
    times = [one["time"] for one in entries(folder)]
    assert times == sorted(times), "the time is that of the request"


async def test_status_routes_have_lines_where_asked_for(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    quiet = await serve(audit_dir=str(tmp_path / "quiet"))
    loud = await serve(audit_dir=str(tmp_path / "loud"), audit_status_routes=True)
    async with aiohttp.ClientSession() as session:
        for url in (quiet, loud):
            for path in ("/live", "/health"):  # without a worker, the latter answers 503
                async with session.get(url + path) as answer:
                    await answer.read()
    await until(lambda: len(entries(tmp_path / "loud")) == 2)
    assert [(one["path"], one["status"]) for one in entries(tmp_path / "loud")] == [("/live", 200), ("/health", 503)]
    await until(lambda: len(entries(tmp_path / "quiet")) == 1)
    assert entries(tmp_path / "quiet")[0]["path"] == "/health"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
async def test_a_full_disk_drops_and_counts(
    house: Any, serve: Any, until: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "audit"
    folder.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        await house.start()
        url = await serve(audit_dir=str(folder))
        room = os.statvfs(folder)
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            file.write(b"x" * (room.f_bavail - 1) * room.f_frsize)
        missing = {**BODY, "model": "none"}
        assert await ask(url, *[missing] * 40) == [503] * 40
        await asyncio.sleep(0.1)
        assert await ask(url, missing) == [503]
        await until(lambda: caplog.text.count("No space left on device") == 1)
        found = await counts(url)
        assert found["dropped"] > 0
        filler.unlink()
        await ask(url, missing)
        async with asyncio.timeout(30):
            while (found := await counts(url))["written"] + found["dropped"] < 42:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        lines = entries(folder)
        assert len(lines) > 2
        assert sum(one["kind"] == "request" for one in lines) == found["written"]
        assert sum(one.get("lines", 0) for one in lines) == found["dropped"]
        assert caplog.text.count("lines were dropped so far") == 1
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_the_folder_must_be_ours(serve: Any, tmp_path: Path) -> None:
    from dynamod.features.audit.ingress import AuditReader

    file = tmp_path / "file"
    file.write_text("")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    for folder in (file, file / "below", shared):
        with pytest.raises(UserError, match="audit_dir") as raised:
            AuditReader(AuditSettings(audit_dir=str(folder)), "x")
        assert raised.value.hint


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LOGS_DIRECTORY": "/var/log/dynamod:/x", "HOME": "/h"}, "/var/log/dynamod/audit"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/dynamod/audit"),
        ({"HOME": "/h"}, "/h/.local/state/dynamod/audit"),
    ],
)
def test_the_default_folder(environ: dict[str, str], folder: str) -> None:
    assert str(default_folder(environ)) == folder
    assert str(AuditSettings(audit=True).folder(environ)) == folder
    assert str(AuditSettings(audit_dir="/own").folder(environ)) == "/own"


def test_without_a_home_a_folder_must_be_named() -> None:
    with pytest.raises(UserError, match="audit_dir") as raised:
        default_folder({})
    assert "/var/log/audit" in raised.value.hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"audit_file_mb": 0}, "audit_file_mb: expected .*>= 0.001"),
        ({"audit_file_hours": -1}, "audit_file_hours"),
        ({"audit_files": 0}, "audit_files: expected .*>= 1"),
        ({"audit_body_kb": "many"}, "audit_body_kb"),
        ({"audit": "perhaps"}, "audit: expected .*bool"),
        ({"audit_redact": "user"}, "audit_redact"),
        ({"audit_bodys": True}, "audit_bodys.*"),
    ],
)
def test_wrong_settings_name_the_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(FrontendSettings, settings, "Frontend")


def test_settings_from_the_environment() -> None:
    found = from_environment({"DYN_AUDIT": "1", "DYN_AUDIT_DIR": "/x"})
    settings: Any = extended(FrontendSettings)(**found)
    assert (settings.audit, settings.audit_dir) == (True, "/x")


def graph(folder: str, config: dict[str, Any], **environ: str) -> Any:
    """A running graph as the daemon has it, with a frontend and a service that is none."""
    spec = SimpleNamespace(component_kind=FRONTEND, config=config, envs={})
    other = SimpleNamespace(component_kind="worker", config={"audit": True}, envs={})
    origin = SimpleNamespace(environ={"HOME": "/h", **environ}, folder=folder)
    services = {"Frontend": spec, "Worker": other}
    return SimpleNamespace(graph=SimpleNamespace(services=services), origin=origin)


def node(**graphs: Any) -> Any:
    return SimpleNamespace(name="one", graphs=SimpleNamespace(running=graphs))


def test_the_folders_of_a_node() -> None:
    found = audits(
        node(
            off=graph("/w", {}),
            relative=graph("/w", {"audit-dir": "logs"}),
            default=graph("/w", {"audit": True, "port": 1}),
            variable=graph("/w", {}, DYN_AUDIT_DIR="/v"),
            wrong=graph("/w", {"audit": True, "audit_files": "many"}),
        )
    )
    assert [str(path) for path in found] == ["/w/logs", "/h/.local/state/dynamod/audit", "/v"]


async def test_a_command_is_written_for_graphs_before_and_after(tmp_path: Path) -> None:
    one = graph("/", {"audit_dir": str(tmp_path / "one")})
    two = graph("/", {"audit_dir": str(tmp_path / "two")})
    daemon = node(one=one)
    part = AuditedCommands(daemon)

    async def proceed(call: CommandCall) -> Any:
        daemon.graphs.running = {"two": two}
        if call.sender:
            raise UnknownName("no graph 'one'", "")
        return "done"

    assert await part.command(CommandCall(STATUS, {}), proceed) == "done"
    daemon.graphs.running = {"one": one}
    assert await part.command(CommandCall(STOP, {"graph": "one"}, peer=Peer(0, 7)), proceed) == "done"
    with pytest.raises(UnknownName):
        await part.command(CommandCall(STOP, {"graph": "one"}, "three"), proceed)
    part.refused(CommandCall(STOP, {"graph": "one"}, peer=Peer(1000, 8)), 403, "no")
    first, others = tmp_path / "one", tmp_path / "two"
    for folder, count in ((others, 3), (first, 1)):  # each file has a writer of its own
        while not folder.exists() or len(entries(folder)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [(entry["command"], entry["user"], entry["pid"]) for entry in entries(first)] == [("stop", "root", 7)]
    assert [(entry["status"], entry["error"]) for entry in entries(others)] == [
        (200, ""),
        (404, "no graph 'one'"),
        (403, "no"),
    ]
    assert entries(others)[1]["sender"] == "three"
    assert [path.name for path in first.iterdir()] == ["daemon.jsonl"]
