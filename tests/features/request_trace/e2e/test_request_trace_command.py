"""The request trace by the real commands: complete through SIGTERM, and honest about a kill."""

import os
import signal
from pathlib import Path
from typing import Any

from dynamod.features.request_trace.rows import read_rows
from tests.e2e.together import together

CONFIG = """
graph: graphs.agg:Frontend
Frontend: {port: 0, request_trace: true, request_trace_file_path: FOLDER/run, request_trace_file_roll_lines: 20}
Worker: {engine: echo_core, model: sample}
"""


def served(machine: Any) -> tuple[Any, str, Path]:
    """The command, its URL, and the folder of the trace."""
    folder = machine.folder / "traces"
    (machine.folder / "trace.yaml").write_text(CONFIG.replace("FOLDER", str(folder)))
    command = machine.start("dynamo", "serve", "-f", "trace.yaml")
    return command, command.ready(), folder


def rows(folder: Path) -> int:
    return len(list(read_rows(sorted(folder.glob("run.*")))))


@together
def test_sigterm_loses_no_row_and_the_files_can_be_used(machine: Any) -> None:
    command, url, folder = served(machine)
    for _ in range(60):
        machine.chat(url, "hello", max_tokens=4)
    command.end(signal.SIGTERM)
    files = sorted(folder.glob("run.*"))
    assert len(files) >= 3
    assert rows(folder) == 60
    out = machine.folder / "timeline.json"
    assert machine.run("dynamo", "trace", "perfetto", *files, "--out", out).code == 0
    assert out.stat().st_size > 1000
    replayed = machine.run("dynamo", "bench", "replay", files[0], "--workers", "2")
    assert replayed.code == 0, replayed.err


@together
def test_a_kill_loses_the_last_interval_and_the_next_process_says_so(machine: Any) -> None:
    command, url, folder = served(machine)
    for _ in range(10):
        machine.chat(url, "hello", max_tokens=4)
    machine.until(lambda: rows(folder) == 10)
    for _ in range(3):
        machine.chat(url, "hello", max_tokens=4)
    os.kill(machine.row("Frontend")["pid"], signal.SIGKILL)
    machine.until(lambda: rows(folder) == 13 or "a process was killed; up to" in command.err, 30)
    assert 10 <= rows(folder) <= 13
    command.end()
