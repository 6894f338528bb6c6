"""What agents use, with real vLLM and SGLang: forms of answers, calls of tools, prompts that are scored."""

import json
import re
from typing import Any

import pytest

from .asking import chat_body
from .scoring import score
from .test_heavy import ENV, VLLM, External, engine, installed, ready
from .tools import use_a_tool

__all__ = ["engine"]

pytestmark = pytest.mark.heavy

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "<city>", "schema": CITY, "end": "</city>"}],
    "triggers": ["<city"],
}
TAG = {"type": "tag", "begin": "<city>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</city>"}
PERU = "The capital of Peru is Lima."
GBNF = 'root ::= "one " number\nnumber ::= [0-9] [0-9] [0-9]'


def serve(machine: Any, engine: External, *words: Any) -> str:
    shape = ("--kv-cache-block-size", 32, *words)
    command = machine.start("dynamo-run", *engine.run, *shape, "--", *engine.words, **ENV)
    url = ready(command)
    machine.until(lambda: machine.serves(url))
    return url


def ask(machine: Any, url: str, text: str, **fields: Any) -> dict[str, Any]:
    status, answer = machine.ask(url, "/v1/chat/completions", chat_body(text, max_tokens=200, **fields), 120)
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)["choices"][0]["message"]
    return found


def noise(machine: Any, url: str, seed: int, **form: Any) -> str:
    """A completion of noise but for its form: it stands behind no thoughts."""
    body = {"model": "sample", "prompt": "Who are you?", "max_tokens": 400, "temperature": 1.5, "seed": seed, **form}
    status, answer = machine.ask(url, "/v1/completions", body, 120)
    assert status == 200, answer
    [choice] = json.loads(answer)["choices"]
    assert choice["finish_reason"] == "stop", choice
    return str(choice["text"])


def is_city(text: str) -> bool:
    found = json.loads(text, strict=False)  # xgrammar lets control characters through
    return found["size"] in ("small", "large") and len(found["city"]) <= 12


def test_answers_keep_to_forms(machine: Any, engine: External) -> None:
    url = serve(machine, engine, "--reasoning-parser", "basic")
    for seed in range(3):
        assert is_city(noise(machine, url, seed, response_format=JSON))
        assert re.fullmatch("[a-c]{5}", noise(machine, url, seed, guided_regex="[a-c]{5}"))
        assert noise(machine, url, seed, guided_choice=["certainly", "never"]) in ("certainly", "never")
        assert re.fullmatch("one [0-9]{3}", noise(machine, url, seed, structured_outputs={"grammar": GBNF}))
        tag = {"type": "structural_tag", "format": TAG}
        [city] = re.findall("^<city>(.*)</city>$", noise(machine, url, seed, response_format=tag), re.S)
        assert is_city(city)
    assert ask(machine, url, "What is the capital of Peru?", response_format=OLDER, temperature=0)["content"] == PERU
    thought = ask(machine, url, "Think: what is 2 plus 3?", guided_regex="[0-9]{3}", temperature=0)
    assert thought["reasoning_content"] == "2 plus 3 is 5.\n"
    assert re.fullmatch("[0-9]{3}", thought["content"])
    body = chat_body("x", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}})
    status, text = machine.ask(url, "/v1/chat/completions", body)
    assert (status, json.loads(text)["error"]["param"].split(".")[0]) == (400, "response_format")
    use_a_tool(url)


def test_scoring_as_lm_evaluation_harness_does_with_vllm(machine: Any) -> None:
    score(machine, serve(machine, installed(VLLM)))
