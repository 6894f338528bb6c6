"""The request trace in a frontend: rows, counts, files that roll, what a killed process has lost."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamod.features.replay.trace import read_request_trace
from dynamod.features.request_trace import unwritten
from dynamod.features.request_trace.files import RolledFile
from dynamod.features.request_trace.perfetto import timeline
from dynamod.features.request_trace.rows import agent_of, read_rows
from dynamod.features.request_trace.settings import TraceSettings
from dynamod.features.request_trace.unwritten import told
from dynamod.http import records
from dynamod.http.settings import from_environment
from dynamod.message.errors import UserError

CHAT = "/v1/chat/completions"
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 20}


async def ask(url: str, *bodies: dict[str, Any], **headers: str) -> list[int]:
    async with aiohttp.ClientSession(url) as session:
        found = []
        for body in bodies:
            async with session.post(CHAT, json=body, headers=headers) as answer:
                await answer.read()
                found.append(answer.status)
        return found


async def counts(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        lines = [one for one in (await answer.text()).splitlines() if one.startswith("dynamo_frontend_request_trace_")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def rows(path: Path) -> list[dict[str, Any]]:
    return list(read_rows(sorted(path.parent.glob(f"{path.name}*"))))


async def traced(house: Any, serve: Any, until: Any, path: Path, **settings: Any) -> str:
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    given = {"request_trace": True, "request_trace_file_path": str(path), "request_trace_file_flush_interval_ms": 20}
    return str(await serve(**given, **settings))


async def test_each_request_has_a_row(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows" / "trace"
    url = await traced(house, serve, until, path)
    headers = {"X-Dynamo-Session-ID": "run", "X-Dynamo-Session-Final": "true"}
    asked = [BODY, BODY | {"stream": True, "n": 2}, BODY | {"model": "none"}]
    assert await ask(url, *asked, **headers) == [200, 200, 404]
    await until(lambda: len(rows(path)) == 2)
    one, two = rows(path)
    assert (one["schema"], one["event_type"], one["event_source"]) == (
        "dynamo.request.trace.v1",
        "request_end",
        "dynamo",
    )
    assert one["agent_context"] == {"session_id": "run", "session_final": True}
    request = one["request"]
    assert (request["model"], request["output_tokens"]) == ("sample", 20)
    assert request["finish_reason_metadata"]["finish_reason"] in ("stop", "length")
    replay = request["replay"]
    assert replay["input_length"] == request["input_tokens"]
    size = replay["trace_block_size"]
    assert len(replay["input_sequence_hashes"]) == replay["input_length"] // size
    both = len(replay["input_sequence_hashes"]) + len(replay.get("completion_sequence_hashes", ()))
    assert both == (replay["input_length"] + 20) // size
    assert [choice["choice_index"] for choice in two["request"]["choices"]] == [0, 1]
    assert sum(choice["output_tokens"] for choice in two["request"]["choices"]) == two["request"]["output_tokens"]
    assert "hello" not in json.dumps([one, two])
    assert await counts(url) == {"written": 2, "dropped": 0, "lost": 0}

    (file,) = path.parent.iterdir()
    recorded = read_request_trace(file)
    assert recorded is not None
    assert (len(recorded.arrivals), recorded.block_size, recorded.skipped) == (3, size, 0)
    assert recorded.arrivals[0].blocks == tuple(replay["input_sequence_hashes"])

    shown = timeline([one, two])["traceEvents"]
    slices = [event for event in shown if event["ph"] == "X"]
    assert slices[0]["name"] == request["request_id"]
    assert len(slices) == 8
    for event in slices:
        assert {"ts", "dur", "pid", "tid"} <= event.keys()
        assert event["dur"] >= 0
    for track in {(event["pid"], event["tid"]) for event in slices}:
        whole, *parts = [event for event in slices if (event["pid"], event["tid"]) == track][:4]
        assert all(
            whole["ts"] <= one["ts"] <= one["ts"] + one["dur"] <= whole["ts"] + whole["dur"] + 1 for one in parts
        )


async def test_payload_rows_only_where_asked_for(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows" / "trace.jsonl"
    url = await traced(
        *(house, serve, until, path),
        request_trace_records="request_payload,request_end",
        request_trace_file_format="jsonl",
        request_trace_http_header_capture_list="X-Team, authorization",
    )
    assert await ask(url, BODY, BODY | {"stream": True}, **{"X-Team": "blue"}) == [200, 200]
    await until(lambda: len(rows(path)) == 4)
    payloads = [row["payload"] for row in rows(path) if row["event_type"] == "request_payload"]
    assert [one["endpoint"] for one in payloads] == ["openai.chat_completion"] * 2
    assert [one["payload_complete"] for one in payloads] == [True, True]
    assert payloads[0]["request"] == BODY
    assert payloads[0]["response"]["object"] == "chat.completion"
    assert payloads[1]["response"][0]["object"] == "chat.completion.chunk"
    assert payloads[0]["http_request_headers"] == {"x-team": "blue"}


def test_files_roll_by_rows_and_bytes(tmp_path: Path) -> None:
    file = RolledFile(tmp_path / "t", True, 1000, 3)
    assert file.append([b'{"n":%d}\n' % number for number in range(7)]) == 7
    file.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == [f"t.00000{number}.jsonl.gz" for number in range(3)]
    found = [line for name in names for line in gzip.decompress((tmp_path / name).read_bytes()).splitlines()]
    assert found == [b'{"n":%d}' % number for number in range(7)]
    plain = RolledFile(tmp_path / "p", False, 20)
    assert plain.append([b'{"n":%d}\n' % number for number in range(5)]) == 5
    plain.close()
    assert sorted(one.name for one in tmp_path.iterdir() if one.name[0] == "p") == ["p", "p.000000", "p.000001"]


def test_a_killed_process_leaves_its_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    script = (
        "import asyncio, os, pathlib, sys\n"
        "from dynamod.features.request_trace.unwritten import Ledger, LedgerFile\n"
        "from dynamod.observe.line_writer import LineWriter\n"
        "async def main():\n"
        "    path = pathlib.Path(sys.argv[1])\n"
        "    ledger = Ledger(path)\n"
        "    writer = LineWriter(LedgerFile(ledger, path, True, 10**6, 0), 'x', pause=60.0)\n"
        "    for number in range(5):\n"
        "        writer.put(b'{}\\n'); ledger.note(writer, 0)\n"
        "        if number == 2:\n"
        "            writer.hand_over()\n"
        "            while writer.written < 3: await asyncio.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    assert told(path, "agg/ingress.0") == 2
    assert "a process was killed; up to 2 of its 5 rows are in no file" in caplog.text
    assert told(path, "agg/ingress.0") == 0
    (file,) = tmp_path.iterdir()
    assert gzip.decompress(file.read_bytes()) == b"{}\n" * 3


async def test_requests_whose_records_are_still_to_come_count(
    house: Any, serve: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PAUSE_S", 60.0)
    path = tmp_path / "trace"
    url = await traced(house, serve, until, path)
    assert await ask(url, BODY, BODY | {"stream": True}, BODY | {"model": "none"}) == [200, 200, 404]
    (ledger,) = unwritten._folder().glob(f"{unwritten._prefix(path)}*")

    def taken() -> int:
        return int(unwritten._COUNTS.unpack(ledger.read_bytes())[0])

    await until(lambda: taken() == 2)
    assert not path.exists()
    assert await ask(url, *[BODY] * records.AT_ONCE) == [200] * records.AT_ONCE
    await until(lambda: len(rows(path)) >= records.AT_ONCE - 1)
    await until(lambda: taken() == records.AT_ONCE + 2)


@pytest.mark.parametrize(
    ("headers", "session", "parent"),
    [
        ({"x-dynamo-session-id": "a", "x-dynamo-parent-session-id": "b"}, "a", "b"),
        ({"x-claude-code-session-id": "a"}, "a", ""),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "c"}, "c", "a"),
        ({"thread-id": "t", "x-codex-parent-thread-id": "p"}, "t", "p"),
        ({"x-session-id": "s", "x-dynamo-session-id": "x" * 257}, "s", ""),
    ],
)
def test_sessions_of_agents(headers: dict[str, str], session: str, parent: str) -> None:
    found = agent_of(headers)
    assert found is not None
    assert (found.session_id, found.parent_session_id) == (session, parent)


def test_requests_without_a_session_have_none() -> None:
    assert agent_of({"x-dynamo-session-final": "true"}) is None


def test_variables_and_mistakes() -> None:
    found = from_environment({"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_ROLL_LINES": "7"})
    assert (found["request_trace"], found["request_trace_file_roll_lines"]) == (True, 7)
    with pytest.raises(UserError, match="DYN_REQUEST_TRACE_CAPACITY"):
        from_environment({"DYN_REQUEST_TRACE_CAPACITY": "many"})
    legacy = TraceSettings(request_trace_sinks="jsonl, stderr")
    assert (list(legacy.sinks), legacy.packed) == (["stderr", "file"], False)
    assert TraceSettings(request_trace_records="request_payload").on
    for wrong in ({"request_trace_sinks": "s4"}, {"request_trace_records": "all"}):
        with pytest.raises(UserError, match="is not known"):
            (TraceSettings(**wrong).sinks, TraceSettings(**wrong).records)


def test_a_shared_file_that_another_process_has_rolled_is_left(tmp_path: Path) -> None:
    """Each row is in the order of its writing, and no file grows above its bound."""
    one, two = (RolledFile(tmp_path / "t", False, 30) for _ in range(2))
    for number in range(8):
        assert (one, two)[number % 2].append([b"row %02d ...\n" % number]) == 1
    one.close()
    two.close()
    files = [*sorted(tmp_path.glob("t.*")), tmp_path / "t"]
    texts = [file.read_bytes() for file in files]
    assert b"".join(texts).split(b"\n")[:-1] == [b"row %02d ..." % number for number in range(8)]
    assert all(len(text) <= 30 for text in texts), [len(text) for text in texts]
