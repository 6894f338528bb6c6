"""Slow is not dead: workers that compute without a word, wait, or hang, made by an engine in a Python file."""

import json
import threading
import time
from typing import Any

import pytest

from dynamod.engine.echo import DELAY
from tests.preprocess.large_models import write_model

from .nodes import models
from .together import together

ENGINE = """
import ctypes, itertools

libc = ctypes.PyDLL(None)  # its calls keep the interpreter's lock: no other thread of the process runs meanwhile


def computes(seconds):
    import time
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        max(itertools.repeat(1, 20_000_000))  # in C, without a switch to another thread


async def generate(request):
    text = request["messages"][-1]["content"]
    if text == "compute":
        computes(6)
    if text == "hang":
        libc.sleep(3600)
    while text == "loop":
        computes(1)
    yield {"id": "1", "choices": [{"index": 0, "delta": {"content": "done", "role": "assistant"}}]}
    yield {"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
"""


def serve(machine: Any, workers: int = 1, **env: str) -> str:
    file = machine.folder / "engine.py"
    file.write_text(ENGINE)
    words = (
        f"--Worker.engine=pystr:{file}",
        "--Worker.served_model_name=sample",
        f"--Worker.ServiceArgs.workers={workers}",
    )
    url: str = machine.agg(*words, **env).ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * workers)
    return url


class Asked(threading.Thread):
    """A chat that is asked in a thread of its own."""

    def __init__(self, machine: Any, url: str, text: str) -> None:
        super().__init__()
        self.machine, self.url, self.text = machine, url, text
        self.status, self.body = 0, ""
        self.start()

    def run(self) -> None:
        body = {"model": "sample", "messages": [{"role": "user", "content": self.text}]}
        self.status, self.body = self.machine.ask(self.url, "/v1/chat/completions", body, 120)

    @property
    def answer(self) -> Any:
        self.join(120)
        return self.status, json.loads(self.body)


def progress(machine: Any, url: str) -> tuple[int, list[dict[str, Any]]]:
    status, body = machine.ask(url, "/health/progress")
    return status, json.loads(body)["workers"]


@together
def test_the_only_worker_computes_without_a_heartbeat_and_answers(machine: Any) -> None:
    url = serve(machine, DYNAMOD_HEARTBEAT_TIMEOUT="1", DYNAMOD_KILL_TIMEOUT="1")
    first = Asked(machine, url, "compute")
    machine.until(lambda: machine.row("Worker")["slow"])
    assert "it computes" in machine.row("Worker")["doing"]
    status, (worker,) = progress(machine, url)
    assert (status, worker["state"]) == (200, "slow")
    assert worker["progress_age_s"] > 1
    later = Asked(machine, url, "hello")  # the only instance: the request waits for it
    for asked in (first, later):
        status, answer = asked.answer
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "done")
    machine.until(lambda: progress(machine, url)[1][0]["state"] == "ready")
    row = machine.row("Worker")
    assert (row["restarts"], row["state"], row["slow"]) == (0, "Ready", False)
    assert {"spawn", "load"} <= row["phases"].keys()


@together
def test_new_requests_go_to_the_other_worker_while_one_is_slow(machine: Any) -> None:
    url = serve(machine, 2, DYNAMOD_HEARTBEAT_TIMEOUT="1", DYNAMOD_KILL_TIMEOUT="1")
    first = Asked(machine, url, "compute")
    machine.until(lambda: any(row["slow"] for row in machine.ps("Worker")))
    assert [machine.chat(url, f"hello {number}") for number in range(4)] == ["done"] * 4
    assert any(row["slow"] for row in machine.ps("Worker")), "none of them waited for the slow one"
    assert first.answer[0] == 200
    assert [row["restarts"] for row in machine.ps("Worker")] == [0, 0]


@together
def test_a_lock_that_never_opens_is_found_and_its_worker_is_started_again(machine: Any) -> None:
    url = serve(machine, DYNAMOD_HEARTBEAT_TIMEOUT="1")
    pid, began = machine.row("Worker")["pid"], time.monotonic()
    hung = Asked(machine, url, "hang")
    machine.until(lambda: machine.row("Worker")["state"] == "Silent")
    status, (worker,) = progress(machine, url)
    assert (status, worker["state"]) == (503, "stuck")
    machine.until(lambda: machine.row("Worker")["pid"] not in (pid, 0))
    assert time.monotonic() - began > 4, "it was stuck for four heartbeat timeouts"
    status, answer = hung.answer
    assert (status, "error" in answer) == (503, True)
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == "done"
    assert machine.row("Worker")["restarts"] == 1


@together
def test_a_loop_that_computes_nothing_is_stuck_after_the_compute_timeout(machine: Any) -> None:
    clocks = {"HEARTBEAT": "1", "COMPUTE": "4", "KILL": "1"}
    url = serve(machine, **{f"DYNAMOD_{name}_TIMEOUT": value for name, value in clocks.items()})
    pid, began = machine.row("Worker")["pid"], time.monotonic()
    looping = Asked(machine, url, "loop")
    machine.until(lambda: machine.row("Worker")["slow"])
    assert time.monotonic() - began < 4
    machine.until(lambda: machine.row("Worker")["pid"] not in (pid, 0))
    assert time.monotonic() - began > 4
    assert looping.answer[0] == 503
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "hello") == "done"


TWO_MODELS = """
models:
  sample: {{engine: echo_core, model: sample}}
  large: {{engine: echo_core, model: {large}}}
"""


@pytest.mark.slow
@together
def test_an_ingress_that_loads_a_tokenizer_of_262144_tokens_is_never_called_silent(machine: Any) -> None:
    file = machine.folder / "models.yaml"
    file.write_text(TWO_MODELS.format(large=write_model(machine.folder / "large")))
    clocks = {"DYNAMOD_HEARTBEAT_TIMEOUT": "1", DELAY: "20"}
    url = machine.start("dynamo", "serve", "-f", file, "--Frontend.port=0", **clocks).ready()
    machine.until(lambda: {"large", "sample"} <= {*models(machine, url)})  # a busy machine loads the large one last
    stream = machine.stream(url, "All of this comes back, one token at a time. " * 90, model="sample")
    body = {"model": "large", "prompt": "hello"}  # the made model has no template
    answers, rows = list[tuple[int, str]](), list[dict[str, Any]]()
    asked = threading.Thread(target=lambda: answers.append(machine.ask(url, "/v1/completions", body, 120)))
    asked.start()
    while asked.is_alive():
        stream.more(1)
        rows.append(machine.row("Frontend"))
    stream.close()
    assert [status for status, _ in answers] == [200]
    assert {row["state"] for row in rows} == {"Ready"}, "not Silent"
    assert {row["pid"] for row in rows} == {machine.row("Frontend")["pid"]}
    assert machine.row("Frontend")["restarts"] == 0
