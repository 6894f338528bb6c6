"""Small real models answer sensibly: SmolLM2 on llama.cpp and mistral.rs, MiniLM on llama.cpp."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess.packaged import PACKAGED

from .asking import chat_body

pytestmark = [
    pytest.mark.engine,
    pytest.mark.real,
    pytest.mark.skipif(any(one.path is None for one in PACKAGED.values()), reason="needs the extra demo"),
]
ONE = {"OMP_NUM_THREADS": "1"}
WAIT = 120.0
"""Seconds for an answer of a real model on a machine that others use too."""
SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string", "maxLength": 20}, "capital": {"type": "string", "maxLength": 20}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
MODULES = {"llamacpp": "llama_cpp", "mistralrs": "mistralrs"}


def needs(engine: str) -> None:
    if importlib.util.find_spec(MODULES[engine]) is None:
        pytest.skip(f"needs the extra {MODULES[engine]}")


@pytest.mark.parametrize("engine", MODULES)
def test_smollm2_answers(machine: Any, engine: str) -> None:
    needs(engine)
    command = machine.start("dynamo-run", "in=http", f"out={engine}", "smollm2", "--http-port", 0, **ONE)
    url = command.ready(60)

    def message(text: str, **fields: Any) -> dict[str, Any]:
        body = chat_body(text, model="smollm2", temperature=0, **{"max_tokens": 48, **fields})
        status, answer = machine.ask(url, "/v1/chat/completions", body, WAIT)
        assert status == 200, answer
        [choice] = json.loads(answer)["choices"]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}

    assert "4" in message("What is 2+2?")["content"]
    colors = message("Name three colors.")["content"].lower()
    assert [color for color in ("red", "blue", "green") if color in colors] == ["red", "blue", "green"]

    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    place = json.loads(message("Give me France and its capital as JSON.", response_format=form)["content"])
    assert place.keys() == {"country", "capital"}
    assert place["capital"] == "Paris"

    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        called = message("What is the weather in Paris?", tools=TOOLS, tool_choice=choice, max_tokens=60)
        assert called["finish_reason"] in ("tool_calls", "stop"), called
        function = called["tool_calls"][0]["function"]
        assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Paris"})
    command.end()


CITIES = ("Paris", "London", "Berlin", "Madrid", "Rome", "Tokyo", "Oslo", "Vienna", "Prague", "Lisbon")


@pytest.mark.parametrize(("engine", "model", "least"), [("llamacpp", "smollm2", 8), ("mistralrs", "sample", 9)])
def test_a_call_is_right_at_least_as_often_when_it_is_forced(machine: Any, engine: str, model: str, least: int) -> None:
    needs(engine)
    command = machine.start("dynamo-run", "in=http", f"out={engine}", model, "--http-port", 0, **ONE)
    url = command.ready(60)

    free = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {**WEATHER, "parameters": free}}]
    said: list[str] = []

    def right(city: str, choice: str) -> bool:
        more = {"tools": tools, "tool_choice": choice, "max_tokens": 120}
        body = chat_body(f"What is the weather in {city}?", model=model, temperature=0, **more)
        status, answer = machine.ask(url, "/v1/chat/completions", body, WAIT)
        assert status == 200, answer
        said.append(str(answer))
        calls = [one["function"] for one in json.loads(answer)["choices"][0]["message"].get("tool_calls") or ()]
        return [(one["name"], "".join(one["arguments"].split())) for one in calls] == [
            ("get_weather", f'{{"city":"{city}"}}')
        ]

    found = {choice: sum(right(city, choice) for city in CITIES) for choice in ("auto", "required")}
    assert found["required"] >= max(found["auto"], least), said[-1]
    command.end()


@pytest.fixture
def vectors(machine: Any, tmp_path: Path) -> Iterator[str]:
    needs("llamacpp")
    words = ("in=http", "out=llamacpp", "minilm", "--http-port", 0, "--", "--embeddings")
    command = machine.start("dynamo-run", *words, XDG_CACHE_HOME=str(tmp_path), **ONE)
    yield command.ready(60)
    command.end()
    assert [file.suffix for file in (tmp_path / "dynamod/converted").iterdir()] == [".gguf"]


def test_minilm_knows_what_is_alike(machine: Any, vectors: str) -> None:
    def post(path: str, **body: Any) -> Any:
        status, answer = machine.ask(vectors, path, {"model": "minilm", **body}, WAIT)
        assert status == 200, answer
        return json.loads(answer)

    texts = ["A man is eating food.", "Someone has a meal.", "The moon is bright tonight."]
    found = [row["embedding"] for row in post("/v1/embeddings", input=texts)["data"]]
    assert {len(vector) for vector in found} == {384}

    def cosine(one: int, other: int) -> float:
        return float(sum(a * b for a, b in zip(found[one], found[other], strict=True)))

    assert cosine(0, 1) > 0.4 > 0.2 > cosine(0, 2)
    alike, unlike = [row["score"] for row in post("/v1/score", text_1=texts[0], text_2=texts[1:])["data"]]
    assert alike == pytest.approx(cosine(0, 1), abs=1e-3)
    assert alike > 0.4 > 0.2 > unlike
    documents = [texts[2], "Paris is the capital of France.", texts[1]]
    ranked = post("/v1/rerank", query="Who is eating?", documents=documents)["results"]
    assert ranked[0]["index"] == 2


def test_mistralrs_says_that_it_makes_no_vectors_with_minilm(machine: Any, tmp_path: Path) -> None:
    needs("mistralrs")
    words = ("in=http", "out=mistralrs", "minilm", "--http-port", 0)
    for behind in (("--", "--embeddings"), ()):
        ended = machine.start("dynamo-run", *words, *behind, XDG_CACHE_HOME=str(tmp_path), **ONE).wait(60)
        [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert "out=llamacpp" in line, line


def test_models_lists_them(machine: Any, tmp_path: Path) -> None:
    rows = machine.run("dynamo", "models", XDG_CACHE_HOME=str(tmp_path)).out.splitlines()
    kinds = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in rows if row.startswith("| ")}
    assert (kinds["smollm2"], kinds["minilm"]) == ("GGUF", "safetensors")
    assert not [*tmp_path.iterdir()], "nothing is converted to list it"
