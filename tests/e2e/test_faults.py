"""Faults made for real: processes are killed and stopped in the middle of answers, which stay what they were."""

import json
import os
import signal
import time
from typing import Any

from .asking import serving
from .together import together

MOCKERS = (
    *("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Frontend.port=0", "--Worker.engine=mocker"),
    *("--Worker.model=sample", "--Worker.ServiceArgs.workers=4", "--Worker.engine_args.speedup_ratio=1"),
)
BOTH_AGAIN = [("Ready", 0), ("Ready", 1)]


def kill(machine: Any, process: str) -> None:
    """Until the daemon knows: what it asks of a process that has just died is waited for."""
    pid = next(row["pid"] for row in machine.ps("Worker") if row["process"] == process)
    os.kill(pid, signal.SIGKILL)
    machine.until(lambda: pid not in {row["pid"] for row in machine.ps("Worker")})


def metric(machine: Any, url: str, name: str) -> float:
    """Sum of the samples whose line begins so."""
    text = machine.ask(url, "/metrics")[1]
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def test_three_kills_in_one_answer(machine: Any) -> None:
    command = machine.start("dynamo", *MOCKERS, "--Worker.engine_args.speedup_ratio=0.5")
    url = command.ready()
    fields = {"max_tokens": 250, "ignore_eos": True}
    whole = machine.chat(url, "tell me", **fields)
    stream = machine.stream(url, "tell me", **fields)
    killed: set[int] = set()
    for _ in range(3):
        instance, process = serving(machine, stream.id)
        assert instance not in killed, "an instance that has failed is not asked again"
        killed.add(instance)
        kill(machine, process)
        machine.until(lambda: serving(machine, stream.id)[0] not in killed)
        stream.more(10)
    stream.read()
    assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    assert stream.text == whole
    moved = 'dynamo_frontend_model_migration_total{migration_type="ongoing_request"'
    machine.until(lambda: metric(machine, url, moved) == 3)
    assert metric(machine, url, "dynamo_frontend_model_migration_duration_seconds_count{") == 3
    command.end()


@together
def test_kill_and_stop_at_once_under_eight_streams(machine: Any) -> None:
    command = machine.start("dynamo", *MOCKERS, DYNAMOD_HEARTBEAT_TIMEOUT="1")
    url = command.ready()
    fields = {"max_tokens": 300, "ignore_eos": True}
    whole = machine.chats(url, [f"topic {number}" for number in range(8)], **fields)
    streams = [machine.stream(url, f"topic {number}", **fields) for number in range(8)]
    pids = [row["pid"] for row in machine.ps("Worker")]
    os.kill(pids[0], signal.SIGKILL)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert [stream.read().text for stream in streams] == whole
        assert time.monotonic() - begun < 9, "the heartbeat has told of it, not the stall clock of 10 s"
    finally:
        os.kill(pids[1], signal.SIGCONT)
    command.end()


@together
def test_with_limit_zero_a_kill_is_a_clean_error(machine: Any) -> None:
    command = machine.start("dynamo", *MOCKERS, "--Worker.migration_limit=0")
    url = command.ready()
    stream = machine.stream(url, "tell me", max_tokens=400, ignore_eos=True)
    _, process = serving(machine, stream.id)
    kill(machine, process)
    stream.read()
    assert stream.error is not None
    assert stream.error["event"] == "error"
    assert "migration is off (limit 0)" in stream.error["error"]["message"]
    assert not stream.done
    assert machine.chat(url, "and now", max_tokens=5)
    command.end()


@together
def test_a_text_engine_is_sent_again_before_its_first_text_and_not_behind_it(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Frontend.port=0", "--Worker.engine=echo_full"),
        *("--Worker.served_model_name=sample", "--Worker.ServiceArgs.workers=2"),
        DYN_TOKEN_ECHO_DELAY_MS="300",
    )
    url = command.ready()
    stream = machine.stream(url, "abcdefgh")
    _, process = serving(machine, stream.id)
    kill(machine, process)
    stream.read()
    assert stream.error is not None
    assert "cannot continue an answer that has been sent in part" in stream.error["error"]["message"]
    assert "abcdefgh".startswith(stream.text)
    # its death may be known here before the daemon has seen it: both may still be told to be ready
    machine.until(lambda: sorted((row["state"], row["restarts"]) for row in machine.ps("Worker")) == BOTH_AGAIN)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    headers = machine.begin(url, "xyz", request="early")
    machine.until(lambda: machine.raw("GET", "/v1/requests/early/decision")[0] == 200)
    _, process = serving(machine, "early")
    kill(machine, process)
    assert headers.answer()["choices"][0]["message"]["content"] == "xyz"
    command.end()


def test_an_endless_step_is_left_and_a_long_one_is_not(machine: Any) -> None:
    """One worker is 20,000 times slower than the other: its first step would take minutes."""
    slow = machine.folder / "slow.json"
    slow.write_text(json.dumps({"speedup_ratio": 0.00005, "block_size": 16}))
    fast = machine.folder / "fast.json"
    fast.write_text(json.dumps({"speedup_ratio": 1, "block_size": 16}))
    front = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    url = front.ready()
    words = ("in=dyn://test", "out=mocker", "sample", "--extra-engine-args")
    stuck = machine.start("dynamo-run", *words, slow, DYNAMOD_STALL_TIMEOUT="2")
    stuck.prints("ready")
    machine.until(lambda: machine.serves(url))
    other = machine.start("dynamo-run", *words, fast)  # too late for the request, and there when the stall is noticed
    asked = machine.begin(url, "hello there", request="stuck", max_tokens=20, ignore_eos=True)
    machine.until(lambda: machine.raw("GET", "/v1/requests/stuck/decision")[0] == 200)
    other.prints("ready")
    assert asked.answer()["usage"]["completion_tokens"] == 20
    [row] = [row for row in machine.ps("Worker") if row["state"] == "Silent"]
    assert "in one step of" in row["last_error"]
    for number in range(4):  # round robin would come by it
        assert machine.chat(url, f"again {number}", max_tokens=3, ignore_eos=True)
    stuck.end()
    other.end()
    patient = machine.start("dynamo-run", *words, slow, DYNAMOD_STALL_TIMEOUT="60")
    patient.prints("ready")
    machine.until(lambda: machine.serves(url))
    asked = machine.begin(url, "hello there", request="slow", max_tokens=2, ignore_eos=True)
    machine.until(lambda: machine.raw("GET", "/v1/requests/slow/decision")[0] == 200)
    time.sleep(2.5)
    assert [row["state"] for row in machine.ps("Worker")] == ["Ready"]
    asked.leave()
