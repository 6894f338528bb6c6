"""LoRA adapters with llama.cpp: models of their own, migration, prefill workers, loading by API, mistakes."""

import importlib.util
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter
from tests.preprocess.conftest import write_gguf

from .lora import GREEDY, NAMES, SEEDS, WORDS, as_list, change, flags, models, ready, text, texts

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("needs the extra llama_cpp", allow_module_level=True)

pytestmark = pytest.mark.engine

ONE = {"OMP_NUM_THREADS": "1"}
COUNTS = ("Count from 1 to 200.", "Count from 5 to 150.")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / f"{name}.gguf", seed) for name, seed in SEEDS.items()}


def workers(machine: Any, *words: str, count: int = 2, **env: str) -> str:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=llamacpp", "--Common.model=sample.gguf"),
        *("--Frontend.port=0", f"--Worker.ServiceArgs.workers={count}", *words),
        **ONE,
        **env,
    )
    url: str = command.ready()
    ready(machine, url, count)
    return url


def test_with_the_feature_off_those_of_the_settings_are_served(machine: Any, adapters: dict[str, Path]) -> None:
    url = workers(machine, "--Worker.lora", as_list(adapters, "one", "two"), count=1, DYNAMOD_FEATURES="-lora")
    assert set(models(machine, url)) == set(NAMES)
    assert len(set(texts(machine, url, [(name, WORDS[0]) for name in NAMES]))) == 3
    status, body = change(machine, url, "load", lora_name="three", lora_path=str(adapters["three"]))
    assert (status, json.loads(body)["error"]["code"]) == (404, "feature_off")


def test_adapters_are_models_whose_texts_are_the_same_alone_and_mixed(machine: Any, adapters: dict[str, Path]) -> None:
    words = ("in=http", "out=llamacpp", "sample.gguf", "--http-port", 0, *flags(adapters, "one", "two"))
    command = machine.start("dynamo-run", *words, **ONE)
    url = command.ready()
    machine.until(lambda: set(models(machine, url)) == set(NAMES))
    found = models(machine, url)
    assert (found["one"]["parent"], found["one"]["root"]) == ("sample", str(adapters["one"]))
    assert "parent" not in found["sample"]
    asked = [(name, prompt) for prompt in WORDS for name in NAMES]
    alone = texts(machine, url, asked)
    assert all(len(set(alone[first : first + 3])) == 3 for first in range(0, len(asked), 3)), "each has its own text"
    assert texts(machine, url, asked, together=len(asked)) == alone
    status, body = machine.ask(url, "/v1/completions", {"prompt": WORDS[0], **GREEDY})
    assert (status, json.loads(body)["model"]) == (200, "sample"), "who names no model means the one below"
    status, body = change(machine, url, "load", lora_name="three", lora_path=str(adapters["three"]))
    assert (status, json.loads(body)["error"]["code"]) == (403, "not_allowed")
    assert "--allow-runtime-lora-updating" in body
    assert change(machine, url, "unload", lora_name="one")[0] == 403
    command.end()


def test_answers_of_a_killed_worker_go_on_at_the_other(machine: Any, adapters: dict[str, Path]) -> None:
    url = workers(machine, f"--Worker.lora={as_list(adapters, 'one', 'two')}")
    long = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    asked = [(name, prompt) for name in ("one", "two", "sample") for prompt in COUNTS]
    with ThreadPoolExecutor(len(asked)) as pool:
        streams = list(pool.map(lambda one: machine.stream(url, one[1], model=one[0], **long), asked))
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    metrics = machine.ask(url, "/metrics")[1].splitlines()
    moved = [one for one in metrics if one.startswith("dynamo_frontend_model_migration_total{") and "ongoing" in one]
    assert sum(float(one.split()[-1]) for one in moved) >= 2, moved
    ready(machine, url, 2)
    again = [machine.stream(url, prompt, model=name, **long) for name, prompt in asked]
    assert [stream.read().text for stream in again] == [stream.text for stream in streams]


def test_prefill_workers_compute_prompts_for_adapters(machine: Any, adapters: dict[str, Path]) -> None:
    words = ("out=llamacpp", "sample.gguf", *flags(adapters, "one", "two"))
    alone = machine.start("dynamo-run", "in=http", *words, "--http-port=0", **ONE)
    url = alone.ready()
    asked = [(name, prompt) for prompt in WORDS for name in NAMES]
    expected = texts(machine, url, asked)
    alone.end()
    command = machine.start(
        *("dynamo", "serve", "graphs.disagg:Frontend", "-f", "configs/disagg.yaml", "--Frontend.port=0"),
        *(f"--Worker.lora={as_list(adapters, 'one', 'two')}", f"--PrefillWorker.lora={as_list(adapters, 'one')}"),
        *("--Processor.max-local-prefill-length=16",),
        **ONE,
    )
    url = command.ready()
    machine.until(lambda: len(models(machine, url)) == 3)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    assert texts(machine, url, asked) == expected
    metrics = machine.ask(url, "/metrics")[1]
    [remote] = [line for line in metrics.splitlines() if line.startswith("dynamo_frontend_model_remote_prefill_total{")]
    assert float(remote.split()[-1]) == 2 * len(WORDS), "of the model and of one, but not of two"


def test_they_are_loaded_and_unloaded_on_all_workers(machine: Any, adapters: dict[str, Path]) -> None:
    folder = adapters["three"].parent
    url = workers(machine, "--Frontend.allow_runtime_lora_updating=true", f"--Frontend.lora_dir={folder}")
    path = str(adapters["three"])
    (folder / "text.txt").write_text("no adapter")
    (folder / "link.gguf").symlink_to("/etc/passwd")
    assert change(machine, url, "load", lora_name="three", lora_path=path) == (
        200,
        "Success: LoRA adapter 'three' added successfully.",
    )
    both = [one["instance_id"] for one in json.loads(machine.ask(url, "/health")[1])["instances"]]

    def at(instance: int) -> str:
        body = {"model": "three", "prompt": WORDS[0], **GREEDY, "nvext": {"backend_instance_id": instance}}
        status, answer = machine.ask(url, "/v1/completions", body)
        assert status == 200, answer
        return str(json.loads(answer)["choices"][0]["text"])

    first, second = map(at, both)
    assert first == second != text(machine, url, "sample", WORDS[0])
    for body, status, words in (
        ({"lora_name": "three", "lora_path": path}, 400, "has already been loaded"),
        ({"lora_name": "sample", "lora_path": path}, 400, "is that of another model"),
        ({"lora_name": "four", "lora_path": "nowhere.gguf"}, 404, f"no adapter found at {folder}/nowhere.gguf"),
        (
            {"lora_name": "four", "lora_path": "/nowhere.gguf"},
            400,
            f"it must be below {folder}, the setting `lora_",
        ),
        ({"lora_name": "four", "lora_path": "../x.gguf"}, 400, "`lora_path` is '../x.gguf'"),
        ({"lora_name": "four", "lora_path": "link.gguf"}, 400, "`lora_path` is 'link.gguf'"),
        ({"lora_name": "four"}, 400, "lora_path"),
        ({"lora_name": "four", "lora_path": path, "model": "three"}, 400, "is an adapter itself"),
        ({"lora_name": "four", "lora_path": "text.txt"}, 400, "is no GGUF file"),
    ):
        found = change(machine, url, "load", **body)
        assert found[0] == status, found
        assert words in json.loads(found[1])["error"]["message"]
    assert set(models(machine, url)) == {"sample", "three"}
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    ready(machine, url, 2)

    def listed() -> bool:
        instances = [one["instance_id"] for one in json.loads(machine.ask(url, "/health")[1])["instances"]]
        body = {"model": "three", "prompt": "a", "max_tokens": 1}
        asked = [{**body, "nvext": {"backend_instance_id": one}} for one in instances]
        return {machine.ask(url, "/v1/completions", one)[0] for one in asked} == {200}

    machine.until(listed)  # the new one has it too
    assert change(machine, url, "unload", lora_name="three")[0] == 200
    assert set(models(machine, url)) == {"sample"}
    assert change(machine, url, "unload", lora_name="three")[0] == 404


def test_mistakes_are_told_before_anything_starts(machine: Any, adapters: dict[str, Path]) -> None:
    write_gguf(machine.folder / "model.gguf", "gpt2", ["a"], [1], merges=["a a"])
    write_adapter(machine.folder / "other.gguf", 1, architecture="qwen2")
    (machine.folder / "text.txt").write_text("no adapter")
    one = f"one={adapters['one']}"
    for given, words in (
        ((one, one), "the name 'one' is given twice"),
        ((f"sample={adapters['one']}",), "'sample' is the name of the model"),
        (("one=gone.gguf",), "gone.gguf does not exist"),
        (("one=model.gguf",), "of type model, and no adapter"),
        (("one=text.txt",), "is no GGUF file"),
        (("one=other.gguf",), "is for the architecture qwen2, the model is llama"),
        (("one",), "write NAME=PATH"),
        (('{"name": "one"}',), "write NAME=PATH, or an object with name, path and scale"),
    ):
        lora = [word for each in given for word in ("--lora", each)]
        ended = machine.run("dynamo-run", "in=http", "out=llamacpp", "sample.gguf", "--http-port", 0, *lora)
        assert words in ended.mistake(), ended.err
    for engine in ("mistralrs", "mocker", "echo_core"):
        line = machine.run(
            "dynamo-run", "in=http", f"out={engine}", "sample", "--http-port", 0, "--lora", one
        ).mistake()
        assert f"engine '{engine}' loads no LoRA adapters; engines that do: llamacpp, vllm" in line
    line = machine.run("dynamo-run", "in=http", "out=auto", "--lora", one).mistake()
    assert "--lora belongs to the worker" in line
