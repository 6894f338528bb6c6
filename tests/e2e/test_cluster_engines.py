"""A real engine on other nodes: mistral.rs with the shipped sample model, found by leases or at a fixed address."""

import json
import os
import signal
from typing import Any

import pytest

from .asking import chat_body
from .nodes import Servers, front, instances, models, on

pytestmark = pytest.mark.engine

ADDRESS = "dyn://llama3B.backend.generate"
FRANCE = "What is the capital of France?"
LONG = {"max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    pytest.importorskip("mistralrs", reason="needs the extra mistralrs")


def mistral(machine: Any, env: dict[str, str], *words: Any, address: str = ADDRESS) -> Any:
    started = machine.start("dynamo-run", f"in={address}", "out=mistralrs", "sample", *words, **env)
    started.prints("ready", 60)
    return started


def workers(machine: Any) -> dict[str, int]:
    """Pid of the worker's process by the id of its instance, for nodes two and three."""
    found = {}
    for node in ("two", "three"):
        rows = machine.raw("GET", "/v1/ps", socket_path=machine.folder / node / "d.sock")[1]
        found[node] = next(int(row["pid"]) for row in rows if row["component"] == "Worker")
    return found


def home(machine: Any, url: str, request: str) -> str:
    """The node that a request has been sent to last."""
    path = machine.folder / "one/d.sock"
    machine.until(lambda: machine.raw("GET", f"/v1/requests/{request}/decision", socket_path=path)[0] == 200)
    chosen = machine.raw("GET", f"/v1/requests/{request}/decision", socket_path=path)[1][-1]["chosen"]
    known = json.loads(machine.ask(url, "/health")[1])["instances"]
    return str(next(one["node"] for one in known if one["instance_id"] == chosen))


def test_a_model_comes_answers_and_goes_with_its_node(machine: Any, shared_servers: Servers) -> None:
    door, url = front(machine, shared_servers)
    assert models(machine, url) == []
    for _ in range(2):
        two = mistral(machine, on(machine, shared_servers, "two"))
        machine.until(lambda: models(machine, url) == ["sample"])
        assert instances(machine, url) == ["two"]
        answer = machine.chat(url, FRANCE, max_tokens=100)
        assert "The capital of France is Paris" in answer
        stream = machine.stream(url, FRANCE, max_tokens=100).read()
        assert (stream.text, stream.finish, stream.done, stream.error) == (answer, "stop", True, None)
        two.end()
        machine.until(lambda: models(machine, url) == [], 2.0)
    status, text = machine.ask(url, "/v1/chat/completions", chat_body(FRANCE))
    assert (status, "no model is being served" in text) == (503, True)
    assert door.code is None


def test_at_a_fixed_address_it_needs_only_nats(machine: Any, servers: Servers) -> None:
    def alone(node: str) -> dict[str, str]:
        return {key: value for key, value in on(machine, servers, node).items() if key != "ETCD_ENDPOINTS"}

    servers.kill("etcd")
    address = "dyn://dynamo.backend.generate"
    words = ("in=http", f"out={address}", "--model-name", "mine", "--model-path", "sample", "--http-port", 0)
    url = machine.start("dynamo-run", *words, **alone("one")).ready()
    assert models(machine, url) == []
    static = mistral(machine, alone("two"), "--static-worker", address=address)
    machine.until(lambda: models(machine, url) == ["mine"])
    answer = machine.chat(url, FRANCE, model="mine", max_tokens=100)
    assert "The capital of France is Paris" in answer
    assert machine.stream(url, FRANCE, model="mine", max_tokens=100).read().text == answer
    static.end()
    machine.until(lambda: models(machine, url) == [])


def test_a_killed_node_is_replaced_before_its_first_text_and_not_behind_it(
    machine: Any, shared_servers: Servers
) -> None:
    _, url = front(machine, shared_servers)
    for node in ("two", "three"):
        mistral(machine, on(machine, shared_servers, node))
    machine.until(lambda: instances(machine, url) == ["three", "two"])
    pids = workers(machine)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)  # so that no text comes before the kill, whoever gets the request
    asked = machine.begin(url, FRANCE, request="early", max_tokens=100)
    node = home(machine, url, "early")
    os.kill(pids.pop(node), signal.SIGKILL)
    [other] = pids.values()
    os.kill(other, signal.SIGCONT)
    assert "The capital of France is Paris" in asked.answer()["choices"][0]["message"]["content"]
    assert home(machine, url, "early") != node

    machine.until(lambda: instances(machine, url) == ["three", "two"], 60)  # its daemon has started it again
    stream = machine.stream(url, "Count from 1 to 200.", **LONG)
    os.kill(workers(machine)[home(machine, url, stream.id)], signal.SIGKILL)
    stream.read()
    assert stream.text
    assert stream.error is not None
    assert stream.error["event"] == "error"
    assert "cannot continue an answer that has been sent in part" in stream.error["error"]["message"]
    assert (stream.done, stream.finish) == (False, None)
    assert "Paris" in machine.chat(url, FRANCE, max_tokens=100), "the other node serves on"
