"""Models on demand with real processes: one is started when it is asked for, and ends when it is not."""

import http.client
import importlib.util
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dynamod.sample
from tests.adapters import write_adapter

from .asking import Streaming, chat_body
from .together import together

SAMPLE = Path(dynamod.sample.__file__).parent / "hf"

SLOW_ENGINE = """
import time
from pathlib import Path

time.sleep({seconds})


async def generate(request):
    yield {{"choices": [{{"index": 0, "delta": {{"content": "slow"}}, "finish_reason": "stop"}}]}}
"""

FIVE = """
models:
  a: {{engine: mocker, model: sample, aliases: [first, default]}}
  b: {{engine: mocker, model: sample, concurrency: 4}}
  c: {{engine: echo_core, model: sample}}
  d: {{engine: echo_full}}
  e: {{engine: {engine}, model: sample}}
budget: {{models: 2, patience: 1}}
Processor: {{queue_timeout: 60}}
"""


def serve(machine: Any, text: str, **env: str) -> tuple[Any, str]:
    file: Path = machine.folder / "models.yaml"
    file.write_text(text)
    command = machine.start("dynamo", "serve", "-f", file, "--Frontend.port=0", **env)
    return command, command.ready()


def ask(machine: Any, url: str, model: str, text: str = "hello", **more: Any) -> tuple[int, str]:
    body = {"max_tokens": 8, **chat_body(text, **more), "model": model}
    found: tuple[int, str] = machine.ask(url, "/v1/chat/completions", body, 60.0)
    return found


def states(machine: Any, url: str) -> dict[str, str]:
    rows = json.loads(machine.ask(url, "/v1/models")[1])["data"]
    return {row["id"]: row["state"] for row in rows}


def running(machine: Any, url: str) -> list[str]:
    return [row["model"] for row in json.loads(machine.ask(url, "/running")[1])["running"]]


def five(machine: Any) -> str:
    here = importlib.util.find_spec("mistralrs") is not None
    url: str = serve(machine, FIVE.format(engine="mistralrs" if here else "echo_core"))[1]
    return url


@together
def test_five_models_in_two_places(machine: Any) -> None:
    url = five(machine)
    assert states(machine, url) == dict.fromkeys("abcde", "unloaded")
    assert machine.answers(url, "/health") == 200, "it can do work, though nothing is loaded"
    assert json.loads(machine.ask(url, "/v1/models/default")[1])["state"] == "unloaded"
    assert machine.ask(url, "/v1/models/nobody")[0] == 404
    for model in ("a", "b", "c", "d", "e", "a"):
        status, text = ask(machine, url, model, keep_alive="5m", send_loading_state=True)
        assert status == 200, text
        assert json.loads(text)["model"] == model
        assert len(running(machine, url)) <= 2
        assert sorted(states(machine, url)) == ["a", "b", "c", "d", "e"], "it is listed whatever is loaded"
    status, text = ask(machine, url, "default")
    assert (status, json.loads(text)["model"]) == (200, "a"), "an alias answers as its model"
    assert ask(machine, url, "nobody")[0] == 404
    assert machine.ask(url, "/models/unload", {"model": "first"})[0] == 200
    machine.until(lambda: states(machine, url)["a"] == "unloaded")
    status, text = ask(machine, url, "a", "word " * 5000)
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")
    assert states(machine, url)["a"] == "unloaded", "no model is swapped for a request that is wrong"
    assert machine.ask(url, "/models/load", {"model": "c"})[0] == 200
    assert states(machine, url)["c"] == "ready"
    assert machine.row("c")["state"] == "Ready"
    assert machine.ask(url, "/models/load", {"model": "nobody"})[0] == 404
    assert all(row["memory"] > 1e6 for row in json.loads(machine.ask(url, "/running")[1])["running"])


@together
def test_two_hundred_requests_over_five_models_all_end(machine: Any) -> None:
    url = five(machine)
    most = 0
    with ThreadPoolExecutor(200) as pool:
        asked = [pool.submit(ask, machine, url, "abcde"[number % 5], f"number {number}") for number in range(200)]
        while not all(one.done() for one in asked):
            rows = [row for row in machine.ps() if row["process"].rpartition("/")[2].partition(".")[0] in "abcde"]
            most = max(most, len(rows))
            time.sleep(0.02)
    assert [one.result()[0] for one in asked] == [200] * 200
    assert most <= 2
    reports = json.loads(machine.ask(url, "/running")[1])["running"]
    assert {(row["running"], row["waiting"]) for row in reports} == {(0, 0)}
    metrics = machine.ask(url, "/metrics")[1]
    (loads,) = [line for line in metrics.splitlines() if line.startswith("dynamod_on_demand_loads_total{")]
    assert 5 <= float(loads.split()[-1]) <= 40, "requests for a model are served together"


@together
def test_a_busy_model_is_not_swapped_under_its_stream(machine: Any) -> None:
    text = "models: {a: {engine: echo_core, model: sample}, b: {engine: echo_full}}\nbudget: {models: 1, patience: 0}\n"
    _, url = serve(machine, text, DYN_TOKEN_ECHO_DELAY_MS="100")
    words = " ".join(f"word{number}" for number in range(25))
    stream = Streaming(machine._connect(url, 30.0), {**chat_body(words, stream=True), "model": "a"})
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(ask, machine, url, "b")
        machine.until(lambda: '"waiting":1' in machine.ask(url, "/running")[1] or states(machine, url)["a"] == "ready")
        behind = pool.submit(ask, machine, url, "a")
        time.sleep(0.5)
        assert states(machine, url)["a"] == "ready"
        assert not behind.done(), "b has its turn first"
        stream.read()
        assert (stream.finish, stream.error) == ("stop", None)
        assert stream.text.endswith("word24")
        assert (other.result()[0], behind.result()[0]) == (200, 200)


@together
def test_models_come_and_go_with_a_reload(machine: Any) -> None:
    _, url = serve(machine, "models: {a: {engine: echo_full}, b: {engine: echo_full}}\n")
    assert ask(machine, url, "a")[0] == 200
    assert ask(machine, url, "b")[0] == 200
    pid = machine.row("a")["pid"]
    (machine.folder / "models.yaml").write_text("models: {a: {engine: echo_full}, c: {engine: echo_full}}\n")
    machine.run("dynamo", "reload")
    machine.until(lambda: sorted(states(machine, url)) == ["a", "c"])
    machine.until(lambda: states(machine, url)["a"] == "ready")
    assert machine.row("a")["pid"] == pid, "what is loaded stays"
    machine.until(lambda: not machine.ps("b"))
    assert ask(machine, url, "c")[0] == 200
    assert ask(machine, url, "b")[0] == 404


@together
def test_an_idle_model_goes_after_its_ttl_and_comes_back(machine: Any) -> None:
    _, url = serve(machine, "models: {a: {engine: echo_core, model: sample, ttl: 1}}\n", DYN_TOKEN_ECHO_DELAY_MS="100")
    words = " ".join(f"word{number}" for number in range(25))
    stream = Streaming(machine._connect(url, 30.0), {**chat_body(words, stream=True), "model": "a"})
    pid = machine.row("a")["pid"]
    assert stream.read().finish == "stop", "longer than the ttl"
    machine.until(lambda: states(machine, url) == {"a": "unloaded"})
    machine.until(lambda: not machine.ps("a"))
    assert ask(machine, url, "a")[0] == 200
    assert machine.row("a")["pid"] != pid
    status, _ = ask(machine, url, "a", keep_alive=-1)
    assert status == 200
    time.sleep(2.0)
    assert states(machine, url) == {"a": "ready"}
    assert ask(machine, url, "a", keep_alive=0)[0] == 200
    machine.until(lambda: states(machine, url) == {"a": "unloaded"})
    status, text = ask(machine, url, "a", keep_alive="soon")
    assert (status, json.loads(text)["error"]["param"]) == (400, "keep_alive")


@together
def test_beyond_the_queue_timeout_there_is_an_honest_answer(machine: Any) -> None:
    (machine.folder / "slow.py").write_text(SLOW_ENGINE.format(seconds=4))
    text = f"models: {{slow: {{engine: 'pystr:{machine.folder}/slow.py'}}}}\nProcessor: {{queue_timeout: 1}}\n"
    _, url = serve(machine, text)
    body = {**chat_body("hello"), "model": "slow"}
    status, text = machine.ask(url, "/v1/chat/completions", body)
    assert status == 503
    assert "was not ready within 1 s" in json.loads(text)["error"]["message"]
    machine.until(lambda: states(machine, url) == {"slow": "ready"})
    assert ask(machine, url, "slow")[0] == 200
    assert machine.ask(url, "/models/unload", {"model": "slow"})[0] == 200
    machine.until(lambda: states(machine, url) == {"slow": "unloaded"})
    connection = machine._connect(url, 10.0)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 503
    assert 2 <= int(response.headers["Retry-After"]) <= 20, "what is left of a load as long as the last one"


@together
def test_a_stream_is_told_that_its_model_loads(machine: Any) -> None:
    (machine.folder / "slow.py").write_text(SLOW_ENGINE.format(seconds=2))
    _, url = serve(machine, f"models: {{slow: {{engine: 'pystr:{machine.folder}/slow.py'}}}}\n")
    body = {**chat_body("hello", stream=True, send_loading_state=True), "model": "slow"}
    status, text = machine.ask(url, "/v1/chat/completions", body)
    assert status == 200
    comments = [line for line in text.splitlines() if line.startswith(":")]
    assert comments[0] == ": slow is loading for 0 s"
    assert ": slow is loading for 1 s" in comments
    assert '"slow"' in text
    assert text.rstrip().endswith("data: [DONE]")
    status, text = machine.ask(url, "/v1/chat/completions", body)
    assert (status, [line for line in text.splitlines() if line.startswith(":")]) == (200, [])
    assert machine.ask(url, "/models/unload", {"model": "slow"})[0] == 200
    machine.until(lambda: states(machine, url) == {"slow": "unloaded"})
    connection = machine._connect(url, 10.0)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b": slow is ")
    connection.close()
    machine.until(lambda: states(machine, url) == {"slow": "ready"})
    machine.until(lambda: json.loads(machine.ask(url, "/running")[1])["running"][0]["running"] == 0)


@together
def test_a_worker_that_is_killed_while_it_loads_is_started_again(machine: Any) -> None:
    (machine.folder / "slow.py").write_text(SLOW_ENGINE.format(seconds=2))
    _, url = serve(machine, f"models: {{slow: {{engine: 'pystr:{machine.folder}/slow.py'}}}}\n")
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask, machine, url, "slow")
        machine.until(lambda: machine.ps("slow") and machine.row("slow")["pid"])
        time.sleep(0.5)
        assert states(machine, url) == {"slow": "loading"}
        os.kill(machine.row("slow")["pid"], signal.SIGKILL)
        status, text = asked.result()
    assert status == 200, text
    assert machine.row("slow")["restarts"] == 1


@together
def test_the_only_worker_of_a_model_is_killed_under_its_streams(machine: Any) -> None:
    """They wait until it has started again, and go on."""
    _, url = serve(machine, "models: {a: {engine: mocker, model: sample, args: {speedup_ratio: 0.5}}}\n")
    body = {**chat_body("hello", stream=True, max_tokens=60, ignore_eos=True), "model": "a"}
    alone = Streaming(machine._connect(url, 30.0), body).read().text
    streams = [Streaming(machine._connect(url, 60.0), body) for _ in range(4)]
    os.kill(machine.row("a")["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.error, stream.text) == ("length", None, alone)


@together
def test_an_ingress_that_is_killed_finds_what_is_loaded(machine: Any) -> None:
    _, url = serve(machine, "models: {a: {engine: echo_full}, b: {engine: echo_full}}\nbudget: {models: 1}\n")
    assert ask(machine, url, "a")[0] == 200
    worker, ingress = machine.row("a")["pid"], machine.row("Processor")["pid"]
    os.kill(ingress, signal.SIGKILL)
    machine.until(lambda: machine.row("Processor")["pid"] not in (0, ingress))
    machine.until(lambda: machine.answers(url, "/v1/models") and states(machine, url)["a"] == "ready")
    assert ask(machine, url, "a")[0] == 200
    assert machine.row("a")["pid"] == worker
    assert ask(machine, url, "b")[0] == 200
    assert not machine.ps("a"), "the budget holds what was there before"


@together
def test_while_an_ingress_is_replaced_one_process_decides(machine: Any) -> None:
    text = "models: {a: {engine: echo_core, model: sample}, b: {engine: echo_full}}\nbudget: {models: 1, patience: 0}\n"
    _, url = serve(machine, text, DYN_TOKEN_ECHO_DELAY_MS="20")
    stream = Streaming(machine._connect(url, 30.0), {**chat_body("word " * 800, stream=True), "model": "a"})
    assert machine.run("dynamo", "restart", "Frontend", "--timeout", "20").code == 0
    assert sorted(row["state"] for row in machine.ps("Processor")) == ["Draining", "Ready"]
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(ask, machine, url, "b")
        assert ask(machine, url, "a")[0] == 200, "what is loaded is there"
        assert not other.done()
        assert [len(machine.ps(name)) for name in ("a", "b")] == [1, 0]
        stream.close()
        assert other.result()[0] == 200
    assert not machine.ps("a")
    more = machine.run("dynamo", "scale", "Frontend", "2")
    assert more.code != 0
    assert "it decides which models are loaded" in more.err


@together
def test_a_model_that_cannot_be_loaded_says_why(machine: Any) -> None:
    (machine.folder / "bad.py").write_text(f"{SLOW_ENGINE.format(seconds=0)}\nraise RuntimeError('no such device')\n")
    text = f"models: {{bad: {{engine: 'pystr:{machine.folder}/bad.py'}}, good: {{engine: echo_full}}}}\n"
    _, url = serve(machine, text + "budget: {models: 1}\n")
    status, text = ask(machine, url, "bad")
    assert status == 503
    assert "no such device" in json.loads(text)["error"]["message"]
    machine.until(lambda: states(machine, url)["bad"] == "unloaded")
    assert ask(machine, url, "good")[0] == 200
    assert ask(machine, url, "bad")[0] == 503
    status, text = ask(machine, url, "bad", stream=True, send_loading_state=True)
    assert (status, "no such device" in text) == (503, True), "before a comment has gone it is a status"
    assert machine.ask(url, "/models/load", {"model": "bad"})[0] == 503, "a person need not wait for the next attempt"


@together
def test_dynamo_run_with_several_models(machine: Any) -> None:
    (machine.folder / "other").symlink_to(SAMPLE, target_is_directory=True)
    words = ("in=http", "out=mocker", "sample", machine.folder / "other", "--max-models", 1, "--http-port", 0)
    url = machine.start("dynamo-run", *words).ready()
    assert states(machine, url) == {"sample": "unloaded", "other": "unloaded"}
    for model in ("sample", "other"):
        assert ask(machine, url, model)[0] == 200
        assert running(machine, url) == [model]
    refused = {
        ("in=http", "sample", "sample.gguf"): "sample and sample.gguf are both called sample",
        ("in=http", "--max-models", "0", "sample"): "budget.models is 0",
        ("in=http", "--max-models", "1"): "--max-models: which models?",
        ("in=text", "sample", "sample.gguf"): "one model at a time, not sample and sample.gguf with in=text",
        ("in=http", "out=auto", "sample", "sample.gguf"): "out=auto takes no models",
        ("in=http", "sample", "other", "--model-name", "x"): "--model-name belongs to one model",
        ("in=http", "sample", "other", "--lora", "x=y"): "models: {NAME: {worker: {lora: [NAME=PATH]}}}",
    }
    results = machine.batch([("dynamo-run", words) for words in refused])
    for result, said in zip(results, refused.values(), strict=True):
        assert said in result.mistake()


@pytest.mark.engine
@together
def test_llamacpp_and_mistralrs_take_turns(machine: Any) -> None:
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("mistralrs") is None:
        pytest.skip("needs the extras llama_cpp and mistralrs")
    text = """
models:
  one: {engine: llamacpp, model: sample.gguf, args: {n_threads: 1, n_ctx: 2048}}
  two: {engine: mistralrs, model: sample}
budget: {models: 1}
"""
    _, url = serve(machine, text, OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    for model in ("one", "two", "one", "two"):
        status, answer = ask(machine, url, model, temperature=0)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["message"]["content"]
        assert running(machine, url) == [model]


ADAPTERS = """
models:
  a: {{engine: llamacpp, model: sample.gguf, args: {{n_threads: 1, n_ctx: 2048}}, worker: {{lora: ["one={one}"]}}}}
  b: {{engine: mocker, model: sample}}
budget: {{models: 1}}
Frontend: {{allow_runtime_lora_updating: true, lora_dir: {folder}}}
"""


@pytest.mark.engine
@together
def test_adapters_of_models_on_demand(machine: Any) -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs the extra llama_cpp")
    one, two = (write_adapter(machine.folder / f"{seed}.gguf", seed) for seed in (9, 18))
    _, url = serve(machine, ADAPTERS.format(one=one, folder=machine.folder), OMP_NUM_THREADS="1")

    def text(model: str) -> str:
        status, answer = ask(machine, url, model, "water river night " * 13, temperature=0, ignore_eos=True)
        assert status == 200, answer
        return str(json.loads(answer)["choices"][0]["message"]["content"])

    assert states(machine, url) == {"a": "unloaded", "b": "unloaded", "one": "unloaded"}
    first = text("one")
    assert running(machine, url) == ["a"]
    assert states(machine, url) == {"a": "ready", "b": "unloaded", "one": "ready"}
    assert first != text("a")
    assert ask(machine, url, "b")[0] == 200
    body = {"model": "a", "lora_name": "x", "lora_path": str(two)}
    status, answer = machine.ask(url, "/v1/load_lora_adapter", {**body, "lora_name": "b"})
    assert (status, "is that of another model" in answer) == (400, True)
    assert running(machine, url) == ["b"], "it loads nothing for what is refused"
    assert machine.ask(url, "/v1/load_lora_adapter", body)[0] == 200
    assert running(machine, url) == ["a"]
    second = text("x")
    assert second not in (first, text("a"))
    for _ in range(2):
        assert ask(machine, url, "b")[0] == 200
        assert states(machine, url) == {"a": "unloaded", "b": "ready", "one": "unloaded", "x": "unloaded"}
        assert (text("x"), text("one")) == (second, first)
        for row in machine.ps():
            if row["component"] == "Frontend":
                os.kill(row["pid"], signal.SIGKILL)  # who comes next knows them, too
        machine.until(lambda: machine.ask(url, "/v1/models")[0] == 200 and "x" in states(machine, url), 20.0)
    assert ask(machine, url, "b")[0] == 200
    status, answer = machine.ask(url, "/v1/unload_lora_adapter", {"lora_name": "x"})
    assert status == 200, answer
    assert states(machine, url) == {"a": "unloaded", "b": "ready", "one": "unloaded"}
    assert ask(machine, url, "x")[0] == 404
    assert text("one") == first
    assert set(states(machine, url)) == {"a", "b", "one"}
    two.unlink()
    status, answer = machine.ask(url, "/v1/load_lora_adapter", body)
    assert (status, "no adapter found at" in answer) == (404, True)


KEYED = """
models:
  m0: {engine: echo_full, aliases: [zero]}
  m1: {engine: echo_full}
budget: {models: 2}
Frontend: {client_keys_file: keys.yaml}
"""


@together
def test_a_key_sees_and_changes_only_the_models_that_it_may_use(machine: Any) -> None:
    keys = machine.folder / "keys.yaml"
    keys.write_text(
        "[{name: some, key: k0, models: [m0]}, {name: alias, key: kz, models: [zero]}, {name: all, key: k}]"
    )
    keys.chmod(0o600)
    _, url = serve(machine, KEYED)

    def asked(key: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=60)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        try:
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    for model in ("m0", "m1"):
        assert asked("k", "/models/load", {"model": model})[0] == 200

    def seen(key: str) -> list[str]:
        return sorted(row["model"] for row in asked(key, "/running")[1]["running"])

    assert (seen("k"), seen("k0"), seen("kz")) == (["m0", "m1"], ["m0"], ["m0"])
    assert asked("", "/running")[0] == asked("wrong", "/running")[0] == 401
    assert "m1" not in json.dumps([asked("k0", path)[1] for path in ("/running", "/v1/models")])
    for path in ("/models/unload", "/models/load"):
        assert asked("k0", path, {"model": "m1"})[0] == 404
    assert seen("k") == ["m0", "m1"]
    assert asked("k0", "/models/unload", {"model": "m0"})[0] == 200
    machine.until(lambda: (seen("k"), seen("k0")) == (["m1"], []))
