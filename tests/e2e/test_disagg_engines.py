"""Engines that move KV blocks by themselves, by pull and by rendezvous: the same answers, whoever dies or leaves."""

import json
import os
import signal
import time
from typing import Any

import pytest

from .asking import chat_body
from .disagg import unlike
from .nodes import Servers, front, instances, on
from .test_disagg import LONG, SLOW, counts, serve, sessions, workers
from .together import together

SHAPES = ["pull", "rendezvous"]
DECODE = "--Worker.disaggregation_mode=decode"


def start(machine: Any, shape: str, *flags: str, **arguments: Any) -> Any:
    return serve(machine, DECODE, *flags, arguments={**SLOW, "kv_transfer": shape, **arguments})


def alone(machine: Any, *texts: str, **fields: Any) -> list[str]:
    """The answers of a worker that does it all."""
    url = serve(machine, "--Processor.remote-prefill=false", "--name=plain").ready()
    return [machine.chat(url, text, **fields) for text in texts]


def handoffs(machine: Any) -> dict[str, int]:
    """Of the workers that answer, together."""
    found = [one["handoff"] for one in workers(machine) if one["handoff"] and one["handoff"]["sessions"] is None]
    return {key: sum(one[key] for one in found) for key in ("transfers", "bytes", "failed")}


@pytest.mark.parametrize("shape", SHAPES)
@together
def test_a_prompt_is_computed_elsewhere(machine: Any, shape: str) -> None:
    url = start(machine, shape).ready()
    answers = [machine.chat(url, text, max_tokens=20) for text in (LONG, "hello")]
    found = counts(machine, url)
    short = shape == "pull"  # is computed where the answer is
    assert (found["remote_prefill_total"], found.get("local_prefill_total", 0)) == (1 if short else 2, int(short))
    read = handoffs(machine)
    assert read["bytes"] > 20 * 16 * 64, read
    assert (read["transfers"], read["failed"]) == (found["remote_prefill_total"], 0)
    machine.until(lambda: sessions(machine)["open"] == 0)
    assert sessions(machine)["read"] + sessions(machine)["released"] == read["transfers"]
    if not short:
        answer = json.loads(machine.ask(url, "/v1/chat/completions", chat_body("hello", max_tokens=2))[1])
        text = machine.run("dynamo", "explain", answer["id"]).out
        assert "prompt computed by a prefill worker: the answering worker computes no prompts" in text, text
    assert answers == alone(machine, LONG, "hello", max_tokens=20)


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("shape", SHAPES)
@together
def test_a_prefill_worker_that_goes_while_it_computes(machine: Any, shape: str, how: str) -> None:
    """By pull its prompts are computed where the answers are; by rendezvous another prefill worker computes them."""
    url = start(machine, shape, "--PrefillWorker.ServiceArgs.workers=2", speedup_ratio=0.5).ready()
    machine.until(lambda: [row["state"] for row in machine.ps()[:3]] == ["Ready"] * 3)
    texts = [f"{number} {LONG}" for number in range(4)]
    begun = [machine.begin(url, text, request=f"r{number}", max_tokens=20) for number, text in enumerate(texts)]
    time.sleep(0.3)
    pid = machine.ps("PrefillWorker")[0]["pid"]
    os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    answers = [one.answer()["choices"][0]["message"]["content"] for one in begun]
    if how == "stopped":
        os.kill(pid, signal.SIGCONT)
    assert answers == alone(machine, *texts, max_tokens=20)


@together
def test_no_prefill_worker_left_where_one_is_needed(machine: Any) -> None:
    """The request waits for the one that comes back; a new one is refused until then."""
    url = start(machine, "rendezvous", speedup_ratio=0.1, startup_time=2.0).ready()
    machine.until(lambda: [row["state"] for row in machine.ps()[:2]] == ["Ready", "Ready"])
    pid = machine.row("PrefillWorker")["pid"]
    begun = machine.begin(url, LONG, request="waits", max_tokens=20)
    machine.until(lambda: sessions(machine)["open"] == 1)
    os.kill(pid, signal.SIGKILL)
    machine.until(lambda: counts(machine, url)["remote_prefill_failed_total"] >= 1)  # it may be asked once more
    status, text = machine.ask(url, "/v1/chat/completions", chat_body("hello", max_tokens=2))
    assert (status, "No prefill worker of model 'sample' is ready" in text) == (503, True), text
    assert begun.answer()["choices"][0]["message"]["content"] == alone(machine, LONG, max_tokens=20)[0]
    assert machine.chat(url, "hello", max_tokens=2)


@pytest.mark.parametrize("shape", SHAPES)
@together
def test_the_answering_worker_dies(machine: Any, shape: str) -> None:
    """Before its blocks have come, and behind its first tokens."""
    url = start(machine, shape, "--Worker.ServiceArgs.workers=2", speedup_ratio=0.5).ready()
    machine.until(lambda: [row["state"] for row in machine.ps()[:3]] == ["Ready"] * 3)
    fields = {"max_tokens": 120, "ignore_eos": True}
    streams = [machine.stream(url, LONG, **fields) for _ in range(2)]
    begun = [machine.begin(url, f"{number} {LONG}", request=f"r{number}", **fields) for number in range(2)]
    time.sleep(0.1)
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    texts = [stream.read().text for stream in streams]
    assert all(stream.error is None for stream in streams)
    texts += [one.answer()["choices"][0]["message"]["content"] for one in begun]
    assert texts == alone(machine, LONG, LONG, f"0 {LONG}", f"1 {LONG}", **fields)


@pytest.mark.parametrize("shape", SHAPES)
@together
def test_a_client_that_leaves_leaves_no_blocks(machine: Any, shape: str) -> None:
    url = start(machine, shape, speedup_ratio=0.02).ready()  # a prompt takes ten seconds
    begun = [machine.begin(url, f"{number} {LONG}", request=f"r{number}", max_tokens=50) for number in range(3)]
    machine.until(lambda: sessions(machine)["open"] == 3)
    for one in begun:
        one.leave()
    machine.until(lambda: sessions(machine)["open"] == 0, 2.0)
    machine.until(lambda: all(one["engine"]["running"] == one["engine"]["waiting"] == 0 for one in workers(machine)))
    assert machine.chat(url, "hello", max_tokens=2)


@pytest.mark.parametrize("shape", SHAPES)
@together
def test_workers_that_are_not_alike(machine: Any, shape: str) -> None:
    """By pull the answer is computed where it is given; by rendezvous nobody can, which is said."""
    given = {**SLOW, "kv_transfer": shape}
    url = unlike(machine, "mocker", given, {**given, "block_size": 32})
    status, text = machine.ask(url, "/v1/chat/completions", chat_body(LONG, max_tokens=20))
    assert handoffs(machine)["failed"] >= 1
    if shape == "pull":
        assert json.loads(text)["choices"][0]["message"]["content"] == alone(machine, LONG, max_tokens=20)[0]
    else:
        assert (status, "the blocks of the two workers are not alike" in text) == (503, True), text


@together
def test_what_cannot_be_is_one_line_before_anything_starts(machine: Any) -> None:
    ended = serve(machine, "--PrefillWorker.engine=echo_core").wait(30)
    assert ended.code == 2
    assert "engine 'echo_core' cannot be a prefill worker; engines that can: llamacpp, mocker," in ended.err
    ended = start(machine, "push").wait(30)
    assert ended.code == 2
    assert "mocker argument kv_transfer: invalid enum value 'push'" in ended.err
    other = f"--PrefillWorker.engine_args={json.dumps({**SLOW, 'block_size': 32})}"
    says = "Worker.engine_args.block_size is 16, and PrefillWorker.engine_args.block_size is 32: no prompt that one"
    ended = serve(machine, other).wait(30)
    assert (ended.code, says in ended.err) == (2, True), ended.err
    mocker = (f"--{name}.engine=mocker" for name in ("Worker", "PrefillWorker"))
    mine = f"--Worker.engine_args={json.dumps(SLOW)}"
    ended = machine.start("dynamo", "config", "check", "configs/disagg.yaml", *mocker, mine, other).wait(30)
    assert (ended.code, says in ended.err) == (2, True), ended.err


@pytest.mark.parametrize("shape", SHAPES)
def test_over_three_nodes(machine: Any, shared_servers: Servers, shape: str) -> None:
    """The frontend on one, the answering worker on another, the prefill worker on a third."""
    _door, url = front(machine, shared_servers, "--max-local-prefill-length=32")
    arguments = ("--extra-engine-args", json.dumps({**SLOW, "kv_transfer": shape}))
    for node, pool in (("two", "decode"), ("three", "prefill")):
        words = (f"in=dyn://m.{pool}.generate", "out=mocker", "sample", "--disaggregation-mode", pool, *arguments)
        machine.start("dynamo-run", *words, **on(machine, shared_servers, node)).prints("ready", 30)
    machine.until(lambda: instances(machine, url) == ["three", "two"] and machine.serves(url))
    answers: dict[str, str] = {}

    def handoffs_there() -> list[Any]:  # the frontend may hear of the prefill worker a moment later
        long = " ".join([f"{len(answers)}", *[LONG] * 3])
        answers[long] = machine.chat(url, long, max_tokens=20)
        found = machine.raw("GET", "/v1/inspect", socket_path=machine.folder / "two/d.sock")[1]
        details = [one.get("details") for one in found]
        return [one["handoff"] for one in details if one and one.get("handoff")]

    [read] = machine.until(handoffs_there)
    assert (read["transfers"] > 0, read["failed"]) == (True, 0)
    long, answer = answers.popitem()
    assert answer == alone(machine, long, max_tokens=20)[0]
