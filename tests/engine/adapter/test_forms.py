"""Forms as vLLM and SGLang are told: what they get, by mocks of vLLM where its classes would be needed."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.engine.adapter.forms import FORMS
from dynamod.engine.base import EngineOptions
from dynamod.engine.sglang.request import sampling as to_sglang
from dynamod.engine.vllm.engine import Vllm
from dynamod.engine.vllm.names import Names
from dynamod.engine.vllm.request import sampling as to_vllm
from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Message
from dynamod.message.worker import REPLAY, Generate, Grammar, Stops
from dynamod.parsers import ToolSpec, written_calls
from dynamod.parsers.grammars import GRAMMARS, grammar_class
from dynamod.structured.demand import demand
from dynamod.transport.base import Reply

from ..test_mocker_handoff import Outbox

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON, CHOICE = Grammar("json", json.dumps(SCHEMA)), Grammar("choice", '["a.b","c"]')
GBNF, LARK = Grammar("grammar", 'root ::= "a"'), Grammar("grammar", 'start: "a"')
OLDER = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAG = Grammar("structural_tag", json.dumps({"type": "structural_tag", **OLDER}))
ANY = {"type": "any_text"}
GAP = {"type": "regex", "pattern": "[ \\n\\t]{0,8}"}
INNER = {"type": "json_schema", "json_schema": SCHEMA}
THOUGHTS = {"type": "tag", "begin": "", "content": ANY, "end": "</think>"}


def request(grammar: Grammar | None, **stops: Any) -> Generate:
    return Generate("r", "m", tokens.pack((1, 2)), Stops(**stops), eos_token_ids=(9,), grammar=grammar)


def told(make: Any, grammar: Grammar) -> dict[str, Any]:
    """The fields that only a request with a form has."""
    made, without = make(request(grammar), 20), make(request(None), 20)
    found: dict[str, Any] = {name: value for name, value in made.items() if name not in without}
    return found


@pytest.mark.parametrize(
    ("grammar", "vllm", "sglang"),
    [
        (JSON, {"json": JSON.text}, {"json_schema": JSON.text}),
        (Grammar("regex", "[ab]"), {"regex": "[ab]"}, {"regex": "[ab]"}),
        (CHOICE, {"choice": ["a.b", "c"]}, {"regex": r"(a\.b)|(c)"}),
        (GBNF, {"grammar": GBNF.text}, {"ebnf": GBNF.text}),
        (TAG, {"structural_tag": TAG.text}, {"structural_tag": TAG.text}),
    ],
)
def test_each_kind_is_passed_on(grammar: Grammar, vllm: Any, sglang: Any) -> None:
    assert told(to_vllm, grammar) == {"structured_outputs": vllm}
    assert told(to_sglang, grammar) == sglang


def test_lark_is_refused_where_only_gbnf_is_read() -> None:
    assert told(to_vllm, LARK) == {"structured_outputs": {"grammar": LARK.text}}
    with pytest.raises(BadRequest, match="SGLang reads grammars as GBNF only"):
        to_sglang(request(LARK), 20)
    with pytest.raises(BadRequest, match="vLLM reads grammars as GBNF only"):
        to_vllm(request(msgspec.structs.replace(LARK, closing="</think>")), 20)


@pytest.mark.parametrize(
    ("grammar", "inner"),
    [
        (JSON, INNER),
        (Grammar("regex", "[ab]"), {"type": "regex", "pattern": "[ab]"}),
        (CHOICE, {"type": "or", "elements": [{"type": "const_string", "value": one} for one in ("a.b", "c")]}),
        (GBNF, {"type": "grammar", "grammar": GBNF.text}),
        (
            TAG,
            {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [{"type": "tag", "begin": "<f>", "content": INNER, "end": "</f>"}],
            },
        ),
        (Grammar("structural_tag", json.dumps({"format": ANY})), ANY),
    ],
)
def test_behind_reasoning_it_is_a_structural_tag(grammar: Grammar, inner: Any) -> None:
    behind = msgspec.structs.replace(grammar, closing="</think>")
    wanted = {"type": "structural_tag", "format": {"type": "sequence", "elements": [THOUGHTS, GAP, inner]}}
    assert json.loads(told(to_vllm, behind)["structured_outputs"]["structural_tag"]) == wanted
    assert json.loads(told(to_sglang, behind)["structural_tag"]) == wanted


def test_reasoning_and_calls_that_may_come() -> None:
    both = msgspec.structs.replace(JSON, opening="<think>", closing="</think>", calls="<tool_call>")
    found = json.loads(told(to_sglang, both)["structural_tag"])["format"]
    calls = {"type": "sequence", "elements": [{"type": "const_string", "value": "<tool_call>"}, ANY]}
    answer = {"type": "or", "elements": [INNER, calls]}
    thoughts = {**THOUGHTS, "begin": "<think>"}
    behind = {"type": "sequence", "elements": [thoughts, GAP, answer]}
    assert found == {"type": "or", "elements": [behind, answer]}


KNOWN_PARTS = {"sequence", "or", "star", "optional", "tag", "const_string", "any_text", "json_schema", "regex"}
"""Parts of structural tags as xgrammar names them."""


def parts(part: Any) -> set[str]:
    """The types of all parts of a structural tag."""
    inner = [*part.get("elements", ()), *([part["content"]] if "content" in part else ())]
    return {part["type"]}.union(*map(parts, inner))


@pytest.mark.parametrize("name", GRAMMARS)
def test_forced_calls_are_structural_tags_in_the_format_of_the_model(name: str) -> None:
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {**SCHEMA, "required": ["a"]}}}]
    asked = ChatRequest(messages=[Message("user", "?")], tools=tools, tool_choice="required")
    form = written_calls(name, [ToolSpec("lookup", SCHEMA)], (), several=True)
    if form is None:
        assert grammar_class(name).channels, "the format owns reasoning, too"
        return
    found = demand(asked, form)
    assert found is not None
    assert found[1].kind == "structural_tag"
    assert set(found[1].words) <= {*FORMS}
    for tag in (
        told(to_vllm, found[1])["structured_outputs"]["structural_tag"],
        told(to_sglang, found[1])["structural_tag"],
    ):
        whole = json.loads(tag)["format"]
        assert parts(whole) <= KNOWN_PARTS
        assert "lookup" in json.dumps(whole)


def test_a_form_ends_when_it_ends() -> None:
    assert to_vllm(request(JSON, min_tokens=5), 20)["min_tokens"] == 0
    assert to_sglang(request(JSON, min_tokens=20, ignore_eos=True), 20)["ignore_eos"] is False


def test_none_of_them_goes_on_in_the_middle_of_a_form() -> None:
    assert REPLAY not in FORMS
    assert Vllm.capabilities.keeps(FORMS)
    assert not Vllm.capabilities.keeps((REPLAY,))


class Llm:
    """In place of `AsyncLLM`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.more: list[dict[str, Any]] = []

    async def generate(self, _prompt: Any, params: dict[str, Any], _name: str, **more: Any) -> AsyncIterator[Any]:
        self.asked.append(params.get("structured_outputs"))
        self.more.append(more)
        one = SimpleNamespace(token_ids=[5], finish_reason="length", logprobs=None)
        yield SimpleNamespace(outputs=[one], kv_transfer_params={"port": 1}, num_cached_tokens=None)


@virtual
async def test_a_mock_of_vllm_gets_the_form_as_its_own_object_but_not_for_a_prompt_alone() -> None:
    engine: Any = Vllm(EngineOptions("m"), lambda *_: None)
    engine._vllm = Names(dict, "delta", list, SimpleNamespace, (ValueError,), KeyError, IndexError)
    engine.vocabulary, engine.room, engine._llm = 100, 100, Llm()
    outbox = Outbox()
    await engine.generate(request(JSON), Reply(outbox, 1), 1)
    await engine.computed(request(JSON), {})
    assert engine._llm.asked == [SimpleNamespace(json=JSON.text), None]


@virtual
async def test_a_mock_of_vllm_gets_the_trace_of_a_request() -> None:
    engine: Any = Vllm(EngineOptions("m"), lambda *_: None)
    engine._vllm = Names(dict, "delta", list, SimpleNamespace, (ValueError,), KeyError, IndexError)
    engine.vocabulary, engine.room, engine._llm = 100, 100, Llm()
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    await engine.generate(msgspec.structs.replace(request(JSON), trace=trace), Reply(Outbox(), 1), 1)
    await engine.generate(request(JSON), Reply(Outbox(), 1), 1)
    assert engine._llm.more == [{"trace_headers": trace}, {}]
