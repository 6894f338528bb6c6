"""Lines of batches that are made to stop the frontend, and a line at which its process dies again and again."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: 0
  batches_dir: {folder}
  batches_inflight: 4
  batches_line_mb: {line_mb}
Worker:
  engine: mocker
  model: sample
  engine_args: {{speedup_ratio: 1, block_size: 16}}
"""
CHAT = "/v1/chat/completions"


def line(name: str, tokens: int = 4, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": name}], "max_tokens": tokens, "ignore_eos": True, **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": body})


def large(name: str, value: str, megabytes: int = 44) -> str:
    return line(name, x="@").replace('"@"', f"[{value}{f',{value}' * (megabytes * 2**20 // (len(value) + 1))}]")


class Pauses(threading.Thread):
    """Asks for something short all the time, and keeps the longest time that it took."""

    def __init__(self, client: openai.OpenAI) -> None:
        super().__init__(daemon=True)
        self._client, self.longest, self.asked, self.failed = client, 0.0, 0, list[Exception]()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            begun = time.monotonic()
            try:
                self._client.chat.completions.create(
                    model="sample", messages=[{"role": "user", "content": "hi"}], max_tokens=2
                )
            except openai.OpenAIError as error:
                self.failed.append(error)
            self.asked += 1
            self.longest = max(self.longest, time.monotonic() - begun)


@pytest.mark.parametrize("line_mb", [1, 45])
def test_large_and_hostile_lines_hold_no_other_request_up(machine: Any, line_mb: int) -> None:
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(folder=machine.folder / "kept", line_mb=line_mb))
    command = machine.start("dynamo", "serve", "-f", config)
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=60))
    before = machine.row("Frontend")["pid"]
    rows = [
        line("good"),
        large("members", '"a"'),
        large("numbers", "1"),
        line("deep", x="@").replace('"@"', "[" * 400_000),
        line("nested", x="@").replace('"@"', "[" * 90_000 + "]" * 90_000),
        large("objects", '{"a":{}}', 0) if line_mb == 1 else large("objects", '{"a":{}}', 20),
        line("nul").replace("nul", "\\ud800"),
        '{"custom_id": "twice", "custom_id": "again", "method": "POST", "url": "/v1/chat/completions", "body": {}}',
        "[" * 900_000,
        line("last"),
    ]
    with machine.folder.joinpath("in.jsonl").open("w") as file:
        file.write("\n".join(rows))
    pauses = Pauses(client)
    pauses.start()
    uploaded = client.files.create(file=machine.folder / "in.jsonl", purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h")
    machine.until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"), seconds=120)
    pauses.over.set()
    pauses.join(60)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.failed) >= (len(rows), len(rows) - 3)
    assert batch.output_file_id
    done = [json.loads(one)["custom_id"] for one in client.files.content(batch.output_file_id).text.splitlines()]
    assert {"good", "last"} <= set(done)
    assert machine.row("Frontend")["pid"] == before, "the frontend's process died"
    assert not pauses.failed, pauses.failed[:3]
    assert pauses.longest < 8, "other requests stood still"
    command.end()


def begun(folder: Path) -> dict[int, int]:
    """By line: how often it was begun without an end."""
    found: dict[int, int] = {}
    for file in (folder / "batches").glob("*.begun"):
        for mark in file.read_text().split():
            found[int(mark[1:])] = found.get(int(mark[1:]), 0) + (1 if mark[0] == "+" else -1)
    return {number: count for number, count in found.items() if count}


def test_a_line_at_which_the_process_dies_is_not_asked_a_third_time(machine: Any) -> None:
    folder = machine.folder / "kept"
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(folder=folder, line_mb=1))
    command = machine.start("dynamo", "serve", "-f", config)
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=10))
    rows = [line("other 0", 300), line("deadly", 4000), *[line(f"other {n}", 300) for n in range(1, 12)]]
    uploaded = client.files.create(file=("in.jsonl", "\n".join(rows).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h")
    for deaths in (1, 2):
        machine.until(lambda deaths=deaths: begun(folder).get(2) == deaths, seconds=60)
        os.kill(machine.row("Frontend")["pid"], signal.SIGKILL)
        assert begun(folder)[2] == deaths

    def status() -> str:
        try:
            return client.batches.retrieve(batch.id).status
        except openai.OpenAIError:
            return "away"

    machine.until(lambda: status() == "completed", seconds=90)
    batch = client.batches.retrieve(batch.id)
    assert batch.error_file_id
    assert batch.output_file_id
    (error,) = [json.loads(one) for one in client.files.content(batch.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["error"]["code"]) == ("deadly", "server_died")
    answers = [json.loads(one) for one in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(one["custom_id"] for one in answers) == sorted(f"other {n}" for n in range(12))
    assert not list((folder / "batches").glob("*.begun"))
    command.end()
