"""Planners of running graphs: workers come and go with the load, and no stream is lost."""

import json
import os
import signal
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .asking import chat_body, request_of
from .together import together

QUICK = ("--Planner.metric-pulling-interval=0.2", "--Planner.adjustment-interval=0.4", "--Planner.drain-timeout=1")
"""Of a planner whose load changes within seconds."""


def serve(machine: Any, *flags: str, graph: str = "agg_planner", **env: str) -> Any:
    config = f"configs/{graph}.yaml"
    words = ("serve", f"graphs.{graph}:Frontend", "-f", config, "--Frontend.port=0", *QUICK)
    return machine.start("dynamo", *words, *flags, **env)


def pool(machine: Any, name: str = "Worker") -> dict[str, Any]:
    status, found = machine.raw("GET", f"/v1/planner/{name}")
    assert status == 200, found
    return dict(found[0])


def last(machine: Any) -> Any:
    """The last tick for workers; its values are None while there is none."""
    status, found = machine.raw("GET", "/v1/planner/Worker")
    return defaultdict(lambda: None, (found[0]["last"] or {}) if status == 200 else {})


def target(machine: Any) -> int | None:
    """What the last tick has proposed; None before the first."""
    tick = last(machine)["tick"]
    return None if tick is None else int(tick["target"])


def plan(machine: Any, **arguments: Any) -> None:
    status, found = machine.raw("POST", "/v1/plan", arguments)
    assert status == 200, found


def states(machine: Any, component: str = "Worker") -> list[str]:
    return [row["state"] for row in machine.ps(component)]


def texts(streams: list[Any]) -> list[str]:
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    return [stream.text for stream in streams]


def exported(machine: Any) -> float:
    """Ready workers, as metrics say."""
    with closing(machine.unix()) as connection:
        connection.request("GET", "/v1/metrics")
        text = connection.getresponse().read().decode()
    name = 'dynamo_planner_num_replicas{component="Worker",process="agg_planner/Planner.0"} '
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def moved(machine: Any, url: str) -> float:
    """Streams that another worker has continued."""
    lines = machine.ask(url, "/metrics")[1].splitlines()
    return sum(
        float(one.rpartition(" ")[2]) for one in lines if one.startswith("dynamo_frontend_model_migration_total{")
    )


@together
def test_workers_come_with_the_load_and_go_with_it(machine: Any) -> None:
    slow = ("--Worker.engine_args.speedup_ratio=0.2", "--Planner.itl=10", "--Planner.window=1", "--Planner.hold=2")
    command = serve(machine, *slow, "--Planner.startup=0.5")
    url = command.ready()
    fields = {"max_tokens": 400, "ignore_eos": True}
    streams = [machine.stream(url, f"{number} {'word ' * 300}", **fields) for number in range(24)]
    machine.until(lambda: states(machine).count("Ready") >= 3, 20, "more workers")
    ups = [record for record in pool(machine)["records"] if record["replicas"] is not None]
    assert ups[0]["tick"]["reason"] in ("scale_up", "scale_up_queue")
    assert ups[0]["tick"]["target"] == ups[0]["replicas"] > 1
    found = texts(streams)
    machine.until(lambda: states(machine) == ["Ready"], 30, "one worker")
    assert found[0] == machine.chat(url, f"0 {'word ' * 300}", **fields)
    final = [record for record in pool(machine)["records"] if record["replicas"] is not None][-1]
    assert (final["replicas"], final["tick"]["reason"]) == (1, "scale_down")
    shown = machine.run("dynamo", "explain", "planner").out
    assert "pool Worker: 1 to 4 workers, which take" in shown
    assert all(word in shown for word in ("READY", "KV TOKENS", "FORECAST", "KEPT", "WHY"))
    assert exported(machine) == 1
    assert command.err.count("processes (scale_") >= 2
    command.end()


@together
def test_ten_scale_downs_under_64_streams(machine: Any) -> None:
    """Each takes a worker that has streams: those that have come since it started go there."""
    flags = ("--Worker.engine_args.speedup_ratio=0.2", "--Worker.migration_limit=20", "--Planner.drain-timeout=0.2")
    command = serve(machine, *flags)
    url = command.ready()
    fields = {"max_tokens": 450, "ignore_eos": True}
    plan(machine, action="set", min=3, max=3)
    machine.until(lambda: states(machine) == ["Ready"] * 3)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(64)]
    for _ in range(10):
        plan(machine, action="set", min=2, max=2)
        machine.until(lambda: states(machine) == ["Ready"] * 2, 20, "two workers")
        plan(machine, action="set", min=3, max=3)
        machine.until(lambda: states(machine) == ["Ready"] * 3, 20, "three workers")
        machine.until(lambda: last(machine)["ready"] == 3, 10, "its events")
        streams += [machine.stream(url, f"topic {len(streams) + number}", **fields) for number in range(3)]
    assert moved(machine, url) >= 40
    found = texts(streams)
    command.end()
    fast = serve(machine, "--name=again")
    assert found == machine.chats(fast.ready(), [f"topic {number}" for number in range(len(found))], **fields)
    fast.end()


@together
def test_a_worker_whose_streams_do_not_end_goes_after_the_drain_timeout(machine: Any) -> None:
    """Its streams go on elsewhere."""
    command = serve(machine, "--Worker.engine_args.speedup_ratio=0.05", "--Planner.drain-timeout=0.3")
    url = command.ready()
    prompts, fields = [f"topic {number}" for number in range(6)], {"max_tokens": 300, "ignore_eos": True}
    plan(machine, action="set", min=2, max=2)
    machine.until(lambda: states(machine) == ["Ready"] * 2)
    machine.until(lambda: last(machine)["ready"] == 2, 30, "its events")
    streams = [machine.stream(url, prompt, **fields) for prompt in prompts]
    plan(machine, action="set", min=1, max=1)
    machine.until(lambda: states(machine) == ["Ready"], 30, "one worker")
    machine.until(lambda: moved(machine, url) > 0, 30, "its streams elsewhere")
    found = texts(streams)
    command.end()
    fast = serve(machine, "--name=again")
    assert found == machine.chats(fast.ready(), prompts, **fields)
    fast.end()


def replace_planner(machine: Any) -> None:
    """Kill it, and wait for the first decision of the next one."""
    os.kill(machine.row("Planner")["pid"], signal.SIGKILL)
    machine.until(lambda: states(machine, "Planner") == ["Ready"] and last(machine)["ready"], 20, "another planner")


@together
def test_a_planner_that_is_killed_in_the_middle_is_followed_by_another(machine: Any) -> None:
    command = serve(machine)
    command.ready()
    for number in (3, 2, 4, 1):
        plan(machine, action="set", min=number, max=max(number, 1))
        machine.until(lambda number=number: target(machine) == number, 10, "a decision")
        replace_planner(machine)
        machine.until(lambda number=number: states(machine) == ["Ready"] * number, 20, "as it was set")
        assert (pool(machine)["min"], pool(machine)["max"]) == (number, max(number, 1))
    command.end()


FAILS = """
import os, sys
if os.path.exists(os.environ["DYNAMOD_TEST_MARK"]):
    raise RuntimeError("no room for the model")
async def generate(request):
    yield {"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}
"""


@together
def test_workers_that_never_become_ready_are_given_up_and_said(machine: Any) -> None:
    file, mark = machine.folder / "engine.py", machine.folder / "mark"
    file.write_text(FAILS)
    command = serve(
        machine,
        f"--Worker.engine=pystr:{file}",
        "--Worker.engine_args=null",
        "--Worker.served_model_name=sample",
        DYNAMOD_TEST_MARK=str(mark),
    )
    url = command.ready()
    mark.touch()
    plan(machine, action="set", min=2)
    machine.until(lambda: last(machine)["refused"] == "workers_fail", 60, "it says so")
    machine.until(lambda: states(machine) == ["Ready"], 10, "only the one that works")
    shown = machine.run("dynamo", "planner", "status").out
    assert "workers_fail" in shown
    assert machine.chat(url, "hi") == "hello"
    mark.unlink()
    plan(machine, action="resume")
    machine.until(lambda: states(machine) == ["Ready", "Ready"], 20, "it works again")
    command.end()


@together
def test_somebody_scales_by_hand(machine: Any) -> None:
    command = serve(machine)
    command.ready()
    machine.until(lambda: last(machine)["ready"])
    machine.run("dynamo", "scale", "Worker", "3")
    machine.until(lambda: pool(machine)["state"] == "manual", 10, "it has seen it")
    machine.until(lambda: states(machine) == ["Ready"] * 3, 20, "three workers")
    time.sleep(1.5)  # several rounds of the planner
    assert states(machine) == ["Ready"] * 3
    replace_planner(machine)
    assert (pool(machine)["state"], states(machine)) == ("manual", ["Ready"] * 3)
    shown = machine.run("dynamo", "planner", "resume").out
    assert "active" in shown
    machine.run("dynamo", "planner", "set", "max=2")
    machine.until(lambda: states(machine) == ["Ready"] * 2, 20, "the limit")
    machine.run("dynamo", "planner", "pause")
    machine.run("dynamo", "planner", "set", "min=2", "max=4")
    assert pool(machine)["state"] == "paused"
    replace_planner(machine)
    found = pool(machine)
    assert (found["state"], found["min"], found["max"]) == ("paused", 2, 4)
    assert states(machine) == ["Ready"] * 2
    command.end()


@together
def test_two_pools(machine: Any) -> None:
    command = serve(machine, "--Planner.prefill-min-endpoint=2", "--Planner.max-gpu-budget=3", graph="disagg_planner")
    url = command.ready()
    machine.until(lambda: states(machine, "PrefillWorker") == ["Ready"] * 2, 20, "prefill workers")
    assert states(machine) == ["Ready"]
    assert machine.chat(url, "word " * 400, max_tokens=5)
    plan(machine, action="set", component="Worker", min=3, max=8)
    machine.until(lambda: target(machine) == 3, 10, "a decision")
    time.sleep(1)
    assert states(machine) == ["Ready"], "three are the budget of both"
    command.end()


def resident(machine: Any) -> int:
    """Bytes of the largest worker."""
    pages = [Path(f"/proc/{row['pid']}/statm").read_text().split()[1] for row in machine.ps("Worker")]
    return max(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")


@together
def test_memory_for_two_workers(machine: Any) -> None:
    command = serve(machine)
    command.ready()
    machine.until(lambda: states(machine) == ["Ready"])
    each = resident(machine)
    command.end()

    command = serve(machine, f"--Planner.max-memory={2.7 * each:.0f}b", "--Planner.min-endpoint=4")
    command.ready()
    machine.until(lambda: states(machine) == ["Ready"] * 2, 20, "the second one")
    machine.until(lambda: last(machine)["refused"] == "no_devices", 10, "a decision")
    time.sleep(1)
    assert states(machine) == ["Ready"] * 2
    assert 2 * resident(machine) < 2.7 * each
    command.end()


ZERO = ("--Planner.min-endpoint=0", "--Planner.window=1", "--Planner.hold=1")


def refusal(machine: Any, url: str) -> tuple[int, str, int]:
    """Of a chat: status, message, seconds after which to come again."""
    with closing(machine._connect(url, 30.0)) as connection:
        connection.request(*request_of("/v1/chat/completions", chat_body("hi", max_tokens=2)))
        response = connection.getresponse()
        return response.status, json.load(response)["error"]["message"], int(response.headers["Retry-After"])


@together
def test_to_zero_and_back(machine: Any) -> None:
    """Nobody has come yet, many come at once, one takes long, nobody comes, the frontend ends, somebody comes."""
    command = serve(machine, *ZERO, "--Worker.ServiceArgs.workers=0")
    url = command.ready()
    machine.until(lambda: machine.serves(url), 10, "the model of no worker")
    assert states(machine) == []
    assert machine.ask(url, "/health")[0] == 200
    answers = machine.chats(url, [f"topic {number}" for number in range(8)], max_tokens=8)
    long = machine.stream(url, "long", max_tokens=500, ignore_eos=True).read()
    assert (long.finish, long.error) == ("length", None)
    machine.until(lambda: states(machine) == [], 30, "no worker")
    assert last(machine)["tick"]["reason"] == "idle"
    assert machine.serves(url)
    assert machine.run("dynamo", "restart", "Frontend").code == 0
    machine.until(lambda: machine.serves(url), 20, "the model behind a new frontend")
    assert states(machine) == []
    assert answers == machine.chats(url, [f"topic {number}" for number in range(8)], max_tokens=8)
    assert "wanted" in {record["tick"]["reason"] for record in pool(machine)["records"]}
    command.end()


@together
def test_zero_when_nobody_starts_a_worker_in_time_or_at_all(machine: Any) -> None:
    slow = ("--Worker.engine_args.startup_time=3", "--Processor.queue_timeout=1", "--Planner.startup=7")
    command = serve(machine, *ZERO, *slow, "--Worker.ServiceArgs.workers=0", "--Planner.hold=60")
    url = command.ready()
    machine.until(lambda: machine.serves(url), 10, "the model of no worker")
    assert refusal(machine, url) == (503, "no worker of model 'sample' was ready within 1 s", 6)
    machine.until(lambda: states(machine) == ["Ready"], 20, "it comes all the same")
    assert machine.chat(url, "hi", max_tokens=2)
    machine.run("dynamo", "scale", "Worker", "0", "--force")
    machine.until(lambda: pool(machine)["state"] == "manual", 10, "it has seen it")
    status, message, _ = refusal(machine, url)
    assert (status, "none is started: its number of workers was changed by hand" in message) == (503, True), message
    plan(machine, action="resume")
    machine.until(lambda: states(machine) == ["Ready"], 20, "it has been needed a short time ago")
    assert machine.chat(url, "hi", max_tokens=2)
    command.end()


@together
def test_the_budget_is_one_of_gpus(machine: Any) -> None:
    flags = ("--Worker.ServiceArgs.resources.gpu=2", "--Planner.max-gpu-budget=5")
    command = serve(machine, *flags, DYNAMOD_GPUS="0,1,2,3,4,5,6,7")
    command.ready()
    machine.until(lambda: pool(machine)["last"], 20, "a tick")
    plan(machine, action="set", min=2)
    machine.until(lambda: states(machine) == ["Ready"] * 2, 20, "two workers, of two GPUs each")
    status, said = machine.raw("POST", "/v1/plan", {"action": "set", "min": 3})
    assert (status, "min-endpoint 3 with 2 GPUs each is above max-gpu-budget 5" in str(said)) == (400, True), said
    command.end()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--Planner.min-endpoint=2", "--Worker.ServiceArgs.resources.gpu=3"), "2 of Worker with 3 GPUs each, above"),
        (("--Planner.min-endpoint=9",), "min-endpoint 9 is above max-gpu-budget 4"),
        (("--Planner.optimization-target=cheap",), "optimization-target"),
        (("--Planner.load-predictor=oracle",), "load-predictor"),
        (("--Planner.speed=1",), "unknown key"),
        (("--Planner.environment=mars",), "local, virtual, kubernetes"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(machine: Any, flags: tuple[str, ...], said: str) -> None:
    assert (
        said in machine.run("dynamo", "serve", "-f", "configs/agg_planner.yaml", "--Frontend.port=0", *flags).mistake()
    )


@together
def test_commands_without_a_planner_or_with_wrong_words(machine: Any) -> None:
    command = machine.agg("--Worker.engine=echo_core")
    command.ready()
    assert "no planner runs" in machine.run("dynamo", "planner", "status").mistake()
    command.end()
    command = serve(machine)
    command.ready()
    assert "planned: Worker" in machine.run("dynamo", "planner", "status", "--pool", "Foo").mistake()
    assert "write min=1" in machine.run("dynamo", "planner", "set", "min=many").mistake()
    assert "min-endpoint 9 is above" in machine.run("dynamo", "planner", "set", "min=9").mistake()
    assert json.loads(machine.run("dynamo", "planner", "status", "--output", "json").out)[0]["min"] == 1
    command.end()
