"""The request trace in a frontend and of the real command: complete, also through SIGTERM."""

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamod.message.errors import UserError
from tests.e2e.together import together

CHAT = "/v1/chat/completions"
BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello " * 30}], "max_tokens": 20}


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the files in a folder."""
    found = []
    for path in sorted(folder.glob("trace.*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
    return found


async def test_rows_of_a_frontend(house: Any, serve: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker()
    await until(lambda: house.backend.askable())
    url = await serve(
        request_trace=True,
        request_trace_file_path=str(tmp_path / "trace"),
        request_trace_records="request_end,request_payload",
        request_trace_http_header_capture_list="X-Tenant",
        request_trace_file_flush_interval_ms=20,
    )
    headers = {"X-Session-ID": "s1", "X-Tenant": "t"}
    async with aiohttp.ClientSession(url) as session:
        for body in (BODY, {**BODY, "stream": True, "n": 2}, {**BODY, "model": "none"}):
            async with session.post(CHAT, json=body, headers=headers) as answer:
                await answer.read()
        async with session.get("/health") as answer:
            await answer.read()
        await until(lambda: len(rows(tmp_path)) >= 4)
        async with session.get("/metrics") as answer:
            text = await answer.text()
    found = rows(tmp_path)
    ends = [row["request"] for row in found if row["event_type"] == "request_end"]
    payloads = [row["payload"] for row in found if row["event_type"] == "request_payload"]
    assert [one["output_tokens"] for one in ends[:2]] == [20, 40]
    assert ends[0]["input_tokens"] == ends[0]["replay"]["input_length"]
    size = ends[0]["replay"]["trace_block_size"]
    assert len(ends[0]["replay"]["input_sequence_hashes"]) == ends[0]["input_tokens"] // size
    assert ends[0]["replay"]["input_sequence_hashes"] == ends[1]["replay"]["input_sequence_hashes"]
    assert [one["output_tokens"] for one in ends[1]["choices"]] == [20, 20]
    assert all(row["agent_context"] == {"session_id": "s1"} for row in found)
    assert payloads[0]["request"]["messages"] == BODY["messages"]
    assert payloads[0]["http_request_headers"] == {"x-tenant": "t"}
    written = f'dynamo_frontend_request_trace_rows_total{{outcome="written",sink="file"}} {float(len(found))}'
    assert written in text or written.replace('outcome="written",sink="file"', 'sink="file",outcome="written"') in text


async def test_it_is_off_by_default_and_its_folder_must_be_there(house: Any, serve: Any, tmp_path: Path) -> None:
    await house.start()
    await serve(request_trace_file_path=str(tmp_path / "trace"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"request_trace_file_path: .*absent is no folder"):
        await serve(request_trace=True, request_trace_file_path=str(tmp_path / "absent" / "trace"))


@together
def test_sigterm_loses_no_row(machine: Any) -> None:
    variables = {"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_PATH": str(machine.folder / "trace")}
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="20", **variables)
    url = command.ready()
    for number in range(5):
        assert "hello" in machine.chat(url, f"hello {number}")
    streams = [machine.stream(url, "word " * 400, max_tokens=400) for _ in range(3)]
    command.end(signal.SIGTERM, bound=10.0)
    found = rows(machine.folder)
    assert len(found) == 8
    assert [row["request"]["status"] for row in found] == [200] * 8
    assert all(row["request"]["replay"]["input_length"] == row["request"]["input_tokens"] for row in found)
    for stream in streams:
        stream.close()


@together
def test_a_kill_loses_the_rows_of_the_last_flush_at_most(machine: Any) -> None:
    variables = {
        "DYN_REQUEST_TRACE": "1",
        "DYN_REQUEST_TRACE_FILE_PATH": str(machine.folder / "trace"),
        "DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS": "100",
    }
    url = machine.agg(**variables).ready()
    for number in range(5):
        machine.chat(url, f"hello {number}")
    machine.until(lambda: len(rows(machine.folder)) == 5, 5)
    (pid,) = {row["pid"] for row in machine.ps("Frontend")}
    os.kill(pid, signal.SIGKILL)
    assert len(rows(machine.folder)) == 5, "a file that a killed process has left can be read to its end"
