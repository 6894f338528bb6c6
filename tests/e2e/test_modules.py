"""`python -m dynamo.mocker` and its like: a worker of one engine, with the engine's own arguments as flags."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dynamod.engine.names import ENGINES, canonical

MODULES = ("mocker", "mistralrs", "llama_cpp", "echo", "vllm", "sglang", "sglang.worker", "trtllm")
HERE = {"vllm": "vllm", "sglang": "sglang", "sglang.worker": "sglang", "trtllm": "trtllm"}
OWN = {"mocker": "--num-gpu-blocks", "mistralrs": "--prefix-cache-n", "llama_cpp": "--n-gpu-layers", "echo": ""}


@pytest.mark.engine
def test_help_has_both_kinds_of_flags(shared: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        for module, done in zip(
            MODULES, pool.map(lambda one: shared.run(f"dynamo.{one}", "--help"), MODULES), strict=True
        ):
            engine = HERE.get(module, module)
            assert done.code == 0, done.err
            for flag in ("--model-path", "--endpoint", "--context-length", "--extra-engine-args"):
                assert flag in done.out, module
            if "not shown: engine" in (flat := " ".join(done.out.split())):  # its flags are known to its package alone
                assert f"engine '{canonical(engine)}' needs the package" in flat
                assert "pip install" in flat
                continue
            assert OWN.get(module, "") in done.out, module
            assert f"python -m dynamo.{module} --model-path" in done.out


@pytest.mark.parametrize(
    ("module", "words", "says"),
    [
        ("mocker", "", ["engine 'mocker' needs a model", "python -m dynamo.mocker sample"]),
        ("mocker", "sample --num-gpu-blokcs 3", ["--num-gpu-blokcs", "did you mean '--num-gpu-blocks'"]),
        ("mocker", "sample --num-gpu-blocks many", ["num_gpu_blocks", "many"]),
        ("mocker", "sample other", ["one model at a time", "other"]),
        ("mocker", "sample --endpoint dyn://a.b.c.d", ["dyn://a.b.c.d"]),
        ("mocker", 'sample --seed 1 --extra-engine-args {"seed":2}', ["--seed is given twice"]),
        ("mocker", "/nothere", ["/nothere"]),
        ("vllm", "sample", ["'vllm'"]),
        ("sglang.worker", "sample", ["'sglang'"]),
        ("trtllm", "sample", ["engine 'trtllm' needs the package 'tensorrt_llm'", "pip install"]),
    ],
)
def test_mistakes_are_one_line(shared: Any, module: str, words: str, says: list[str]) -> None:
    engine = HERE.get(module, module)
    if module in HERE and importlib.util.find_spec(ENGINES[engine].needs) is not None:
        pytest.skip("the engine is installed")
    line = shared.run(f"dynamo.{module}", *words.split()).mistake()
    assert all(part in line for part in says), line


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="it is installed")
def test_a_missing_package_names_the_extra(shared: Any) -> None:
    done = shared.run("dynamo.llama_cpp", "sample")
    assert done.code == 3
    assert f"engine '{canonical('llama_cpp')}' needs the package 'llama_cpp'" in done.mistake()
    assert "[llama_cpp]'" in done.err


def test_workers_that_a_frontend_finds(machine: Any) -> None:
    url = machine.start("dynamo.frontend", "--http-port", 0).ready()
    words = ("--endpoint", "dyn://own.place.answer", "--context-length", 512)
    own = ("--model-path", "sample", "--speedup_ratio=0", "--num-gpu-blocks", 77, "--no-enable-prefix-caching")
    machine.start("dynamo.mocker", *words, *own, "--model-name", "noise").ready()
    machine.start("dynamo.echo", "sample", "--endpoint=dyn://own.other.generate").ready()
    machine.until(
        lambda: {"noise", "sample"} <= {one["id"] for one in json.loads(machine.ask(url, "/v1/models")[1])["data"]}
    )
    assert "hello" in machine.chat(url, "hello", max_tokens=200)
    status, text = machine.ask(url, "/v1/completions", {"model": "noise", "prompt": "x", "max_tokens": 4})
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
    status, text = machine.ask(url, "/v1/completions", {"model": "noise", "prompt": "one " * 600})
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded"), text
    (process,) = [
        one
        for one in machine.run("dynamo", "top", "--once", "--interval", "0.1", "--output", "json").json["processes"]
        if one["graph"] == "run-mocker"
    ]
    assert process["worker"]["total_blocks"] == 77
    found = json.loads(machine.ask(url, "/health")[1])["endpoints"]
    assert {"dyn://own.place.answer", "dyn://own.other.generate"} <= set(found)


@pytest.mark.engine
@pytest.mark.parametrize(("module", "needs"), [("mistralrs", "mistralrs"), ("llama_cpp", "llama_cpp")])
def test_a_worker_of_a_real_engine_that_a_frontend_finds(machine: Any, module: str, needs: str) -> None:
    pytest.importorskip(needs)
    machine.env["RAYON_NUM_THREADS"] = "1"
    model = "sample.gguf" if module == "llama_cpp" else "sample"
    worker = machine.start(f"dynamo.{module}", "--model-path", model, "--endpoint", "dyn://real.place.answer")
    worker.ready()
    url = machine.start("dynamo.frontend", "--http-port", 0).ready()
    machine.until(lambda: machine.serves(url))
    question = "What is the capital of South Africa?"
    assert machine.chat(url, question, temperature=0) == "The capital of South Africa is Pretoria."
    assert "dyn://real.place.answer" in json.loads(machine.ask(url, "/health")[1])["endpoints"]
    worker.end()


@pytest.mark.parametrize("words", ["--num-gpu-blocks 8", "--num-gpu-blocks 8 other"])
def test_a_model_that_no_word_is(shared: Any, words: str) -> None:
    assert "needs a model" in shared.run("dynamo.vllm", *words.split()).mistake()


def test_a_model_behind_a_flag_of_the_engine(shared: Any) -> None:
    """It is found, so that what is told is what is missing next."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("the engine is installed")
    assert "needs the package 'vllm'" in shared.run("dynamo.vllm", "--enforce-eager", "sample").mistake()
    assert "reads no GGUF files" in shared.run("dynamo.vllm", "--enforce-eager", "sample.gguf").mistake()


def test_words_behind_two_dashes_are_the_engines(machine: Any) -> None:
    words = ("in=http", "out=mocker", "sample", "--http-port=0", "--", "--num_gpu_blocks=33", "--speedup-ratio", 0)
    machine.start("dynamo-run", *words).ready()
    machine.until(lambda: machine.ps("Worker") and machine.row("Worker")["state"] == "Ready")
    processes = machine.run("dynamo", "top", "--once", "--interval", "0.1", "--output", "json").json["processes"]
    assert [one["worker"]["total_blocks"] for one in processes if one["worker"]] == [33]
    wrong = machine.run("dynamo-run", "in=http", "out=mocker", "sample", "--", "--num-gpu-blcks", "1").mistake()
    assert "unknown flag --num-gpu-blcks; did you mean '--num-gpu-blocks'?" in wrong
