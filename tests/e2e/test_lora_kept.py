"""LoRA adapters that were loaded by API: workers that start have them, whichever frontend has loaded them."""

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .nodes import Servers, on

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("needs the extra llama_cpp", allow_module_level=True)

from .lora import GREEDY, WORDS, change, models, ready, text
from .test_lora import ONE, adapters, workers

__all__ = ["adapters"]

pytestmark = pytest.mark.engine

PLANNED = """
Common: {{model: sample.gguf}}
Frontend: {{allow_runtime_lora_updating: true, lora_dir: {folder}}}
Processor: {{common-configs: [model]}}
Planner: {{min-endpoint: 0, window: 1, hold: 1, adjustment-interval: 0.5, metric-pulling-interval: 0.2}}
Worker:
  engine: llamacpp
  common-configs: [model]
  lora: ["one={one}"]
  ServiceArgs: {{workers: 0}}
"""

ALLOWED = ("--Frontend.allow_runtime_lora_updating=true", "--Frontend.lora_dir=/")

ANYWHERE = ("--allow-runtime-lora-updating", "--lora-dir", "/")
HERE = ("--allow-runtime-lora-updating", "--lora-dir", "/proc/self/cwd")
"""The folder of each process."""


def kill(machine: Any, *components: str) -> None:
    for row in machine.ps():
        if row["component"] in components:
            os.kill(row["pid"], signal.SIGKILL)


def seen(machine: Any, url: str) -> set[str]:
    """The models that are there first when there are any again."""
    found: list[set[str]] = []

    def some() -> bool:
        status, body = machine.ask(url, "/v1/models")
        names = {one["id"] for one in json.loads(body)["data"]} if status == 200 else set()
        found.append(names)
        return bool(names)

    machine.until(lambda: not some())
    machine.until(some, 60.0)
    return found[-1]


def at_each(machine: Any, url: str) -> dict[int, str]:
    """The text that each instance makes with the adapter x, where it does."""
    found: dict[int, str] = {}
    for one in json.loads(machine.ask(url, "/health")[1])["instances"]:
        body = {"model": "x", "prompt": WORDS[0], **GREEDY, "nvext": {"backend_instance_id": one["instance_id"]}}
        status, answer = machine.ask(url, "/v1/completions", body)
        if status == 200:
            found[one["instance_id"]] = str(json.loads(answer)["choices"][0]["text"])
    return found


def test_a_worker_appears_with_them_and_a_frontend_still_knows_them(machine: Any, adapters: dict[str, Path]) -> None:
    url = workers(machine, *ALLOWED, count=1)
    base = text(machine, url, "sample", WORDS[0])
    assert change(machine, url, "load", lora_name="x", lora_path=str(adapters["three"]))[0] == 200
    first = text(machine, url, "x", WORDS[0])
    assert first != base
    kill(machine, "Worker")
    assert seen(machine, url) == {"sample", "x"}
    assert text(machine, url, "x", WORDS[0]) == first
    kill(machine, "Worker", "Frontend", "Processor")
    ready(machine, url, 1)
    machine.until(lambda: set(models(machine, url)) == {"sample", "x"})
    assert text(machine, url, "x", WORDS[0]) == first
    kill(machine, "Frontend", "Processor")
    ready(machine, url, 1)
    found = change(machine, url, "load", lora_name="x", lora_path=str(adapters["two"]), load_inplace=True)
    assert found[0] == 200, found
    second = text(machine, url, "x", WORDS[0])
    assert second not in (base, first)
    kill(machine, "Worker")
    assert seen(machine, url) == {"sample", "x"}
    assert text(machine, url, "x", WORDS[0]) == second
    assert change(machine, url, "unload", lora_name="x")[0] == 200
    kill(machine, "Worker")
    assert seen(machine, url) == {"sample"}
    assert text(machine, url, "sample", WORDS[0]) == base


def test_where_one_worker_cannot_all_have_what_they_had(machine: Any, adapters: dict[str, Path]) -> None:
    """A path that each worker finds in a folder of its own, as on two machines."""
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0, *HERE).ready()
    folders = [machine.folder / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        words = (f"in=dyn://{folder.name}.backend.generate", "out=llamacpp", "sample.gguf")
        machine.start("dynamo-run", *words, cwd=folder, **ONE).prints("ready")
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    (folders[0] / "x.gguf").write_bytes(adapters["one"].read_bytes())
    status, body = change(machine, url, "load", lora_name="x", lora_path="x.gguf")
    message = json.loads(body)["error"]["message"]
    assert (status, message.partition(": ")[2]) == (404, "no adapter found at /proc/self/cwd/x.gguf")
    where = message.partition(": ")[0]
    assert where in {one["process"] for one in json.loads(machine.ask(url, "/health")[1])["instances"]}
    assert set(models(machine, url)) == {"sample"}

    (folders[1] / "x.gguf").write_bytes(adapters["one"].read_bytes())
    assert change(machine, url, "load", lora_name="x", lora_path="x.gguf")[0] == 200
    before = at_each(machine, url)
    assert len(before) == 2
    (folders[0] / "x.gguf").write_bytes(adapters["two"].read_bytes())
    (folders[1] / "x.gguf").unlink()
    status, body = change(machine, url, "load", lora_name="x", lora_path="x.gguf", load_inplace=True)
    assert (status, json.loads(body)["error"]["message"]) == (404, message)
    machine.until(lambda: at_each(machine, url) == before)


def test_all_frontends_of_a_cluster_know_them(machine: Any, servers: Servers, adapters: dict[str, Path]) -> None:
    def front(node: str) -> tuple[Any, str]:
        words = ("in=http", "out=auto", "--http-port", 0, *ANYWHERE)
        started = machine.start("dynamo-run", *words, **on(machine, servers, node))
        return started, started.ready()

    def worker(node: str) -> None:
        words = ("in=dyn://dynamo.backend.generate", "out=llamacpp", "sample.gguf")
        machine.start("dynamo-run", *words, **on(machine, servers, node, **ONE)).prints("ready")

    command, first = front("one")
    _, second = front("two")
    worker("three")
    machine.until(lambda: set(models(machine, first)) == set(models(machine, second)) == {"sample"})
    assert change(machine, first, "load", lora_name="x", lora_path=str(adapters["three"]))[0] == 200
    machine.until(lambda: set(models(machine, second)) == {"sample", "x"})
    command.end()
    worker("four")
    machine.until(lambda: len(at_each(machine, second)) == 2)
    [found] = {*at_each(machine, second).values()}
    assert found != text(machine, second, "sample", WORDS[0])
    assert change(machine, second, "unload", lora_name="x")[0] == 200
    assert set(models(machine, second)) == {"sample"}


@pytest.mark.parametrize("where", ["same node", "elsewhere"])
def test_static_workers_have_them_too(machine: Any, servers: Servers, adapters: dict[str, Path], where: str) -> None:
    """On another node without etcd only the frontend knows what was loaded."""

    def alone(node: str) -> dict[str, str]:
        there = on(machine, servers, node).items() if where == "elsewhere" else ()
        return {**{key: value for key, value in there if key != "ETCD_ENDPOINTS"}, **ONE}

    flags = ("--model-name", "mine", "--model-path", "sample.gguf", "--http-port", 0, *ANYWHERE)
    url = machine.start("dynamo-run", "in=http", "out=dyn://dynamo.backend.generate", *flags, **alone("one")).ready()
    given = ("--static-worker", "--lora", f"one={adapters['one']}")
    words = ("in=dyn://dynamo.backend.generate", "out=llamacpp", "sample.gguf", *given)
    worker = machine.start("dynamo-run", *words, **alone("two"))
    worker.prints("ready")
    machine.until(lambda: set(models(machine, url)) == {"mine", "one"})
    assert change(machine, url, "load", lora_name="x", lora_path=str(adapters["three"]))[0] == 200
    found = {name: text(machine, url, name, WORDS[0]) for name in ("mine", "one", "x")}
    assert len({*found.values()}) == 3
    worker.end()
    machine.until(lambda: not models(machine, url))
    worker = machine.start("dynamo-run", *words, **alone("two"))
    machine.until(lambda: set(models(machine, url)) == {"mine", "one", "x"}, 60.0)
    assert {name: text(machine, url, name, WORDS[0]) for name in found} == found
    assert change(machine, url, "unload", lora_name="x")[0] == 200
    assert set(models(machine, url)) == {"mine", "one"}


def test_models_whose_workers_all_leave_keep_theirs(machine: Any, adapters: dict[str, Path]) -> None:
    config = machine.folder / "c.yaml"
    config.write_text(PLANNED.format(one=adapters["one"], folder=adapters["one"].parent))
    command = machine.start("dynamo", "serve", "graphs.agg_planner:Frontend", "-f", config, "--Frontend.port=0", **ONE)
    url = command.ready()

    def rest() -> None:
        machine.until(lambda: not machine.ps("Worker"), 30.0)

    machine.until(lambda: set(models(machine, url)) == {"sample", "one"})
    rest()
    first = text(machine, url, "one", WORDS[0])
    rest()
    found = change(machine, url, "load", lora_name="x", lora_path=str(adapters["two"]))
    assert found[0] == 200, found
    second = text(machine, url, "x", WORDS[0])
    rest()
    assert set(models(machine, url)) == {"sample", "one", "x"}
    assert text(machine, url, "x", WORDS[0]) == second != first
    assert text(machine, url, "one", WORDS[0]) == first
    rest()
    assert change(machine, url, "unload", lora_name="x")[0] == 200
    assert set(models(machine, url)) == {"sample", "one"}
