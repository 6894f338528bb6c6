"""`out=mocker`: a whole server without a model that runs."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from dynamod.message.discovery import Instance
from dynamod.message.ingress import Delta, Items
from dynamod.message.kv_events import ForwardPass, Load, RequestStarted, WorkerEvent, unpack
from dynamod.message.worker import Subscribe
from dynamod.transport.base import Sink
from dynamod.transport.unix import UnixTransport

from .together import together


@together
def test_dynamo_run_with_a_mocker(machine: Any) -> None:
    arguments = machine.folder / "mocker.json"
    arguments.write_text(json.dumps({"speedup_ratio": 100, "num_gpu_blocks": 40, "block_size": 16}))
    command = machine.start(
        "dynamo-run",
        *("in=http", "out=mocker", "--model-path", "sample", "--model-name", "mock", "--http-port", 0),
        *("--extra-engine-args", arguments),
    )
    url = command.ready()
    machine.until(lambda: '"mock"' in machine.ask(url, "/v1/models")[1])
    body = {"model": "mock", "prompt": "one two three", "max_tokens": 20, "seed": 1}

    def ask(**more: Any) -> tuple[int, dict[str, Any]]:
        status, text = machine.ask(url, "/v1/completions", {**body, **more})
        return status, json.loads(text)

    status, answer = ask()
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 20
    assert ask()[1]["choices"][0]["text"] == answer["choices"][0]["text"]
    assert ask(seed=2)[1]["choices"][0]["text"] != answer["choices"][0]["text"]

    status, refused = ask(prompt="one " * 700, max_tokens=1)  # fits the model's context, not the 40 blocks
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    assert "room for 624 " in refused["error"]["message"]

    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert re.search(r"_engine_total_blocks{.*} 40\.0\n", metrics)
    assert re.search(r"_engine_preemptions_total{.*} 0\.0\n", metrics)
    assert re.search(r'dynamod_worker_step_queued_requests_sum_prefill_tokens{.*dp_rank="0".*} 0\.0\n', metrics)

    [path] = machine.folder.rglob("run-mocker.Worker.0.sock")
    events = asyncio.run(told(str(path), ask))
    [computed] = [event for event in events if isinstance(event, ForwardPass) and event.wall_time][:1]
    assert computed.scheduled_requests.num_prefill_requests == 1
    assert computed.queued_requests.num_prefill_requests == 0
    assert {type(event) for event in events} == {ForwardPass, Load, RequestStarted}
    command.end()


class Told(Sink):
    """What a worker tells of its steps."""

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []

    def delta(self, delta: Delta) -> None:
        if isinstance(delta, Items):
            self.events += [event for item in delta.items for event in unpack(item)]

    def lost(self, why: str) -> None:
        raise AssertionError(why)


async def told(path: str, ask: Callable[..., Any]) -> list[WorkerEvent]:
    """The events of a subscriber, until it knows of an answer's steps and that they are over."""
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
        transport = UnixTransport(lambda work, _name: tasks.create_task(work))
        instance, sink = Instance("dynamo", "backend", "generate", 1, {"unix": path}), Told()
        stream = transport.open(instance, Subscribe("planner", steps=True), sink)
        while not sink.events:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        begun = len(sink.events)
        await asyncio.to_thread(ask, prompt="three two one")
        while not any(getattr(event, "wall_time", 1) == 0 for event in sink.events[begun:]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        stream.cancel()
        await transport.close()
    return sink.events


@together
def test_answers_of_a_killed_mocker_go_on_at_the_other(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=mocker", "--Frontend.port=0"),
        *("--Worker.ServiceArgs.workers=2", "--Worker.engine_args.speedup_ratio=2"),
    )
    url = command.ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    asked = [(f"prompt {number}", {"max_tokens": 200, "seed": number}) for number in range(8)]
    streams = [machine.stream(url, text, **fields) for text, fields in asked]
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    command.tree()
    again = [machine.stream(url, text, **fields) for text, fields in asked]
    assert [stream.read().text for stream in again] == [stream.text for stream in streams]


@together
def test_mistakes_are_told_before_anything_starts(machine: Any) -> None:
    arguments = machine.folder / "wrong.yaml"
    arguments.write_text("num_gpu_blcoks: 4\n")
    words = ("in=http", "out=mocker", "sample", "--extra-engine-args", arguments)
    line = machine.run("dynamo-run", *words).mistake()
    assert "num_gpu_blcoks: unknown key" in line
    assert "num_gpu_blocks" in line
    line = machine.run(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=mocker"),
        *("--Worker.engine_args.dp_size=0", "--Frontend.port=0"),
    ).mistake()
    assert "dp_size: expected int >= 1" in line


MONITOR = """
from dynamo.sdk import api, depends, service
from graphs.components import Worker


@service(dynamo={"namespace": "dynamo"})
class Monitor:
    worker = depends(Worker)

    @api
    async def load(self, request: dict):
        async for item in self.worker.load_metrics({}):
            yield item


Monitor.link(Worker)
"""


@together
def test_a_worker_tells_its_load_beside_generate(machine: Any) -> None:
    (machine.folder / "monitor.py").write_text(MONITOR)
    command = machine.start(
        *("dynamo", "serve", "monitor:Monitor", "--Worker.engine=mocker", "--Worker.model=sample", "--Monitor.port=0"),
        "--Worker.engine_args.num_gpu_blocks=100",
    )
    url = command.ready()
    status, text = machine.ask(url, "/load", {"request": {}})
    assert status == 200, text
    [line] = [line for line in text.splitlines() if "kv_stats" in line]
    told = json.loads(line.removeprefix("data: "))
    told = told[0] if isinstance(told, list) else told
    assert told["kv_stats"]["kv_total_blocks"] == 100
    assert told["worker_stats"]["num_requests_waiting"] == 0
    [step] = told["forward_passes"]
    assert (step["version"], step["dp_rank"], step["counter_id"], step["wall_time"]) == (1, 0, 0, 0.0)
    assert step["scheduled_requests"]["sum_prefill_tokens"] == step["queued_requests"]["sum_decode_kv_tokens"] == 0
