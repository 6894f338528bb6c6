"""llama.cpp behind the frontend: answers, a worker that is killed in the middle of them, routing by its KV events."""

import importlib.util
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.preprocess.conftest import write_gguf

from .asking import chat_body
from .tools import ASKED, TOOLS, use_a_tool

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("needs the extra llama_cpp", allow_module_level=True)

pytestmark = pytest.mark.engine

ONE = {"OMP_NUM_THREADS": "1"}
LONG = {"max_tokens": 600, "ignore_eos": True}


def decision(machine: Any, request: str) -> dict[str, Any]:
    machine.until(lambda: machine.raw("GET", f"/v1/requests/{request}/decision")[0] == 200)
    found: dict[str, Any] = machine.raw("GET", f"/v1/requests/{request}/decision")[1][-1]
    return found


def home(machine: Any, request: str) -> str:
    last = decision(machine, request)
    return str(next(one["process"] for one in last["candidates"] if one["instance"] == last["chosen"]))


def two_workers(machine: Any, *words: str) -> tuple[Any, str]:
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=llamacpp", "--Common.model=sample.gguf"),
        *("--Frontend.port=0", "--Worker.ServiceArgs.workers=2", *words),
        **ONE,
    )
    url: str = command.ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    return command, url


def test_dynamo_run_answers(machine: Any) -> None:
    (machine.folder / "args.json").write_text('{"n_threads": 1, "n_parallel": 8, "n_ctx": 4096}')
    words = ("in=http", "out=llama_cpp", "sample.gguf", "--extra-engine-args", "args.json", "--http-port", 0)
    command = machine.start("dynamo-run", *words, **ONE)
    url = command.ready()
    machine.until(lambda: machine.serves(url))
    assert machine.chat(url, "What is the capital of France?") == "The capital of France is Paris."
    texts = [f"What is the capital of {country}?" for country in ("Spain", "Japan", "Kenya", "Norway")]
    assert [answer.split()[-1] for answer in machine.chats(url, texts)] == ["Madrid.", "Tokyo.", "Nairobi.", "Oslo."]
    asked = chat_body("Who are you?", logprobs=True, top_logprobs=2, n=2)
    status, text = machine.ask(url, "/v1/chat/completions", asked)
    assert status == 200, text
    first, second = json.loads(text)["choices"]
    assert first["message"]["content"] == second["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in first["logprobs"]["content"])
    body = {"model": "sample", "prompt": "one " * 3000, "max_tokens": 1}
    status, text = machine.ask(url, "/v1/completions", body)
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")
    command.end()


def test_mistakes_are_told_before_anything_starts(machine: Any) -> None:
    (machine.folder / "wrong.json").write_text('{"n_ctxx": 4096}')
    line = machine.run("dynamo-run", "out=llama.cpp", "sample.gguf", "--extra-engine-args", "wrong.json").mistake()
    assert "n_ctxx: unknown key; did you mean 'n_ctx'?" in line
    assert "max_num_seqs" in line
    write_gguf(machine.folder / "new.gguf", "gpt2", ["a"], [1], merges=["a a"], pre="brand-new")
    line = machine.run("dynamo-run", "out=llamacpp", "new.gguf").mistake()
    assert "pre-tokenizer 'brand-new' (tokenizer.ggml.pre) is not known; give the original model folder" in line
    (machine.folder / "long.json").write_text('{"rope_scale": 2}')
    words = ("dynamo-run", "in=http", "out=llama.cpp", "sample.gguf", "--http-port", 0, "--context-length")
    ended = machine.start(*words, 5000, "--extra-engine-args", "long.json").wait(30)
    assert "5000 is larger than the model's 2048, 2 times as long by rope_scale" in ended.err
    assert "5000 is larger than the model's 2048;" in machine.start(*words, 5000).wait(30).err
    line = machine.start("dynamo-run", "in=http", "out=llamacpp", "sample", "--http-port", 0).wait(30).mistake()
    assert "needs a GGUF file" in line, "before anything starts"
    assert "did you mean `sample.gguf`?" in line


def test_answers_of_a_killed_worker_go_on_at_the_other(machine: Any) -> None:
    command, url = two_workers(machine)
    asked: list[tuple[str, dict[str, Any]]]
    asked = [(text, {"temperature": 0, **LONG}) for text in ("Count from 1 to 200.", "Tell me a story.")]
    asked += [("Count from 5 to 150.", {"temperature": 0.7, "seed": seed, **LONG}) for seed in range(4)]
    with ThreadPoolExecutor(len(asked)) as pool:  # the first is not over when the last has begun
        streams = list(pool.map(lambda one: machine.stream(url, one[0], **one[1]), asked))
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    machine.until(lambda: command.err.count("moves to another instance") >= 3)  # lines come a moment later
    assert command.err.count("moves to another instance") == 3, "half of them"
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    command.tree()
    again = [machine.stream(url, text, **fields) for text, fields in asked]
    assert [stream.read().text for stream in again] == [stream.text for stream in streams]


def test_prefixes_go_where_they_are_cached(machine: Any) -> None:
    _, url = two_workers(machine, "--Processor.router_mode=kv")

    def ask(topic: int, request: str, **more: Any) -> str:
        words = " ".join(["apple", "river", "stone", "cloud"][(topic + n) % 4] for n in range(80))
        begun = machine.begin(url, f"{topic} {words}", request=request, max_tokens=4, temperature=0, **more)
        content: str = begun.answer()["choices"][0]["message"]["content"]
        return content

    ask(9, "other")
    both = [one["instance"] for one in decision(machine, "other")["candidates"]]
    answers = [ask(n, f"first-{n}", nvext={"backend_instance_id": both[n % 2]}) for n in range(4)]
    homes = [home(machine, f"first-{topic}") for topic in range(4)]
    assert homes == homes[:2] * 2
    assert len(set(homes)) == 2
    for topic in (2, 3):
        machine.until(
            lambda topic=topic: ask(topic, f"probe-{topic}") and decision(machine, f"probe-{topic}")["overlap"]
        )
    for request, topic in [(f"again-{turn}-{topic}", topic) for turn in range(2) for topic in range(4)]:
        assert ask(topic, request) == answers[topic]
        assert decision(machine, request)["overlap"] >= 4
        assert home(machine, request) == homes[topic]


def test_tools_and_thoughts(machine: Any) -> None:
    words = ("in=http", "out=llamacpp", "sample.gguf", "--http-port", 0, "--reasoning-parser", "basic")
    url = machine.start("dynamo-run", *words, **ONE).ready()
    machine.until(lambda: machine.serves(url))
    use_a_tool(url)
    thought = "Think: what is 2 plus 3?"
    status, text = machine.ask(url, "/v1/chat/completions", chat_body(thought, guided_regex="[0-9]{1,2}"))
    assert status == 200, text
    message = json.loads(text)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("2 plus 3 is 5.\n", "5")
    form: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"enum": ["sunny", "cloudy"]}},
    }
    asked = {**chat_body(ASKED["content"], tools=TOOLS, response_format=form)}
    first = json.loads(machine.ask(url, "/v1/chat/completions", asked)[1])["choices"][0]
    [call] = first["message"]["tool_calls"]
    assert (first["finish_reason"], json.loads(call["function"]["arguments"])) == ("tool_calls", {"city": "Paris"})
    asked["messages"] += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    last = json.loads(machine.ask(url, "/v1/chat/completions", asked)[1])["choices"][0]
    assert (last["finish_reason"], last["message"]["tool_calls"]) == ("stop", None)
    assert json.loads(last["message"]["content"]) in form["json_schema"]["schema"]["enum"]
