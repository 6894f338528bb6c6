"""A batch whose frontend is killed and replaced, and whose daemon ends, in the middle."""

import json
import os
import signal
from typing import Any

import openai

from tests.e2e.together import together

CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: 0
  batches_dir: {folder}
  batches_inflight: 4
Worker:
  engine: mocker
  model: sample
  engine_args: {{speedup_ratio: 0.4, block_size: 16}}  # the batch is not over before the last of what happens to it
"""
LINES = 120


def line(number: int) -> str:
    body = {"messages": [{"role": "user", "content": f"tell {number}"}], "max_tokens": 50, "ignore_eos": True}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


@together
def test_a_batch_goes_on_after_a_kill_and_a_new_start(machine: Any) -> None:
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(folder=machine.folder / "kept"))
    command = machine.start("dynamo", "serve", "-f", config)
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=10))
    rows = [line(number) for number in range(LINES)]
    rows.insert(7, '{"custom_id": "cut')
    file = client.files.create(file=("in.jsonl", "\n".join(rows).encode()), purpose="batch")
    assert client.files.content(file.id).text == "\n".join(rows)
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

    def answered() -> list[str]:
        """The lines of answers, as they are on the disk: of the only file beside the input and the errors."""
        found = [path.read_text() for path in (machine.folder / "kept/files").glob("*.data")]
        return next((text.splitlines() for text in found if '"status_code":200' in text), [])

    machine.until(lambda: len(answered()) >= 8)
    os.kill(machine.row("Frontend")["pid"], signal.SIGKILL)
    killed = answered()
    assert len(killed) < LINES, "it was over before the kill"
    machine.until(lambda: len(answered()) >= len(killed) + 8)
    assert machine.run("dynamo", "restart", "Frontend").code == 0
    replaced = answered()
    machine.until(lambda: len(answered()) >= len(replaced) + 8)
    command.end()
    assert "Traceback" not in command.err
    ended = answered()
    assert len(ended) < LINES, "it was over before the end of the daemon"
    assert ended[: len(killed) - 1] == killed[:-1], "answers that were there have changed"

    fast = "--Worker.engine_args.speedup_ratio=20"  # nothing is cut any more
    command = machine.start("dynamo", "serve", "-f", config, fast)
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=10))
    machine.until(lambda: client.batches.retrieve(batch.id).status == "completed")
    batch = client.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (LINES + 1, LINES, 1)
    assert batch.output_file_id
    assert batch.error_file_id
    lines = client.files.content(batch.output_file_id).text.splitlines()
    assert lines[: len(ended) - 1] == ended[:-1], "answers that were there have changed"
    answers = [json.loads(one) for one in lines]
    assert sorted(one["custom_id"] for one in answers) == sorted(f"r{number}" for number in range(LINES))
    assert {one["response"]["body"]["usage"]["completion_tokens"] for one in answers} == {50}
    (error,) = [json.loads(one) for one in client.files.content(batch.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["error"]["line"]) == (None, 8)
    command.end()


def test_the_folder_as_a_flag(machine: Any) -> None:
    """It is relative to where the command runs, as files of keys are."""
    command = machine.start("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, "--batches-dir", "kept")
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=10))
    made = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    assert (machine.folder / f"kept/files/{made.id}.data").read_bytes() == b"{}"
    command.end()
    (machine.folder / "kept").chmod(0o755)
    wrong = machine.run("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, "--batches-dir", "kept")
    assert "batches_dir: others may use" in wrong.err
    assert wrong.code
    words = ("in=dyn://a.b.c", "out=echo_full", "--batches-dir", "kept")
    assert "--batches-dir" in machine.run("dynamo-run", *words).mistake()
