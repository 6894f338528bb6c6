"""Grammars of clients in the process that compiles them: verdicts, places, and what would hang or crash it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.message.errors import BadRequest, Overloaded
from dynamod.message.worker import Grammar
from dynamod.structured import checks as module
from dynamod.structured.checks import TOO_COMPLEX, TOO_SLOW, Compiler, GrammarChecks
from dynamod.structured.demand import JSON_OBJECT


def json_grammar(schema: Any) -> Grammar:
    return Grammar("json", json.dumps(schema))


DEEP = {f"a{index}": {"properties": {"x": {"$ref": f"#/$defs/a{index + 1}"}}} for index in range(1000)}
CRASHES = json_grammar({"$ref": "#/$defs/a0", "$defs": {**DEEP, "a1000": {"type": "integer"}}})
HANGS = json_grammar({"type": "string", "allOf": [{"pattern": f"a.*{index}"} for index in range(50)]})


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler()
    yield made
    made.close()


@pytest.mark.parametrize(
    "grammar",
    [
        json_grammar(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}
        ),
        json_grammar({"type": "array", "items": {"anyOf": [{"const": 1}, {"enum": ["x", None]}]}, "minItems": 2}),
        Grammar("regex", "[a-z]+@[a-z]+"),
        Grammar("choice", json.dumps(["ja", 'n"e\\in', "\n", "ä"])),
        Grammar("grammar", 'start: "a" | "b" start'),
        Grammar("grammar", 'root ::= "a" | "b" root'),
    ],
)
def test_what_compiles(compiler: Compiler, grammar: Grammar) -> None:
    assert not compiler.verdict(grammar).error


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("choice", json.dumps([f"answer {number}" for number in range(3000)])),
        Grammar("choice", json.dumps(["", "a"])),
        Grammar("choice", json.dumps(["x" * 5000, "y"])),
    ],
)
def test_choices_may_be_many_and_long(compiler: Compiler, grammar: Grammar) -> None:
    assert not compiler.verdict(grammar).error


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "(a?){500}a{500}"),
        Grammar("grammar", 'start: s\ns: s s s | s s | "a"\n'),
    ],
)
def test_what_compiles_and_cannot_be_followed_is_refused(compiler: Compiler, grammar: Grammar) -> None:
    assert compiler.verdict(grammar).error


@pytest.mark.parametrize(
    ("grammar", "text", "place"),
    [
        (json_grammar({"type": "intger"}), "intger", ""),
        (json_grammar({"properties": {"a": {"items": {"type": "intger"}}}}), "intger", ".properties.a.items"),
        (json_grammar({"anyOf": [{}, {"not": {}}]}), "not", ".anyOf[1]"),
        (json_grammar({"$ref": "#/$defs/a", "$defs": {"a": {"uniqueItems": True}}}), "uniqueItems", ".$defs.a"),
        (json_grammar({"properties": {"a": {"$ref": "#/$defs/b"}}}), "/$defs/b", ".properties.a"),
        (Grammar("regex", "(a"), "unclosed group", ""),
        (Grammar("grammar", "start: nothing"), "nothing", ""),
        (Grammar("grammar", 'root ::= "a'), "", ""),
    ],
)
def test_what_does_not_compile_and_where(compiler: Compiler, grammar: Grammar, text: str, place: str) -> None:
    verdict = compiler.verdict(grammar)
    assert verdict.error
    assert text in verdict.error
    assert verdict.place == place


def test_what_would_crash_or_hang_us(compiler: Compiler) -> None:
    assert compiler.verdict(CRASHES) == TOO_COMPLEX
    assert not compiler.verdict(JSON_OBJECT).error
    assert compiler.verdict(HANGS) == TOO_SLOW
    assert not compiler.verdict(JSON_OBJECT).error


def test_what_compiles_and_cannot_be_followed(compiler: Compiler) -> None:
    many = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(1000)}}
    verdict = compiler.verdict(json_grammar(many))
    assert ("items" in verdict.error, verdict.place) == (True, "")
    verdict = compiler.verdict(json_grammar({"properties": {"a": {"type": "array", "items": many}}}))
    assert ("items" in verdict.error, verdict.place) == (True, ".properties.a.items")
    verdict = compiler.verdict(json_grammar({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"type": "null"}, many]}}}))
    assert ("items" in verdict.error, verdict.place) == (True, ".$defs.x.anyOf[1]")
    some = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(400)}}
    assert not compiler.verdict(json_grammar({"properties": {"a": some}})).error
    assert not compiler.verdict(json_grammar({**many, "required": list(many["properties"])})).error


def test_a_process_that_ended_while_nobody_asked_is_replaced(compiler: Compiler) -> None:
    assert not compiler.verdict(JSON_OBJECT).error
    assert compiler._process is not None
    compiler._process.send_signal(signal.SIGALRM)
    compiler._process.wait()
    assert not compiler.verdict(JSON_OBJECT).error


def test_a_process_that_somebody_ends_says_nothing_of_the_grammar(compiler: Compiler) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        assert not compiler.verdict(JSON_OBJECT).error
        assert compiler._process is not None
        compiler._process.send_signal(number)
        compiler._process.wait()
        assert not compiler.verdict(JSON_OBJECT).error


def test_the_place_in_a_large_schema(compiler: Compiler) -> None:
    """The search has a time of its own; without its end the schema as a whole is named."""
    many = {f"p{index}": {"type": "object", "properties": {"x": {"type": "string"}}} for index in range(700)}
    verdict = compiler.verdict(json_grammar({"properties": {**many, "bad": {"not": {}}}}))
    assert "not" in verdict.error
    assert verdict.place in ("", ".properties.bad")


def test_without_an_answer_the_client_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    assert not compiler.verdict(JSON_OBJECT).error
    assert compiler._process is not None
    compiler._process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, compiler._process.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(module, "WAIT", 0.05)
    with pytest.raises(Overloaded, match="within"):
        compiler.verdict(JSON_OBJECT)
    compiler.close()
    with pytest.raises(Overloaded, match="stopping"):
        compiler.verdict(JSON_OBJECT)


class Counted(Compiler):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def verdict(self, grammar: Grammar) -> module.Verdict:
        self.asked += 1
        return module.Verdict("it is bad", ".here") if "bad" in grammar.text else module.Verdict("")


async def test_each_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counted()
    checks = GrammarChecks(compiler)
    await asyncio.gather(*[checks.check("f", Grammar("regex", "a")) for _ in range(10)])
    assert compiler.asked == 1
    await checks.check("f", JSON_OBJECT)
    assert compiler.asked == 1, "this one is ours"
    for _ in range(2):
        with pytest.raises(BadRequest, match=r"`f.here`: it is bad") as caught:
            await checks.check("f", Grammar("regex", "bad"))
        assert caught.value.param == "f.here"
    assert compiler.asked == 2
    monkeypatch.setattr(module, "KEPT", 3)
    for index in range(10):
        await checks.check("f", Grammar("regex", str(index)))
    await checks.check("f", Grammar("regex", "9"))
    assert compiler.asked == 12
    await checks.check("f", Grammar("regex", "a"))
    assert compiler.asked == 13, "it had been forgotten"
