"""Masks of answers that keep to a form: all that may come is accepted, nothing else, and a replay is the same state."""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod import sample
from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Grammar
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer
from dynamod.structured import grammars as module
from dynamod.structured.demand import JSON_OBJECT
from dynamod.structured.grammars import Grammars
from dynamod.structured.matcher import Matcher
from dynamod.structured.vocabulary import SPECIAL

PIECES = [bytes((byte,)) for byte in range(256)] + [b"</s>", b'{"', b'":', SPECIAL + b"<s>", b"", b"tr", b"true"]
EOS = 256


class Bytes:
    """A tokenizer with a token for each byte and some more."""

    def __init__(self, tokens: Sequence[bytes] | None = PIECES) -> None:
        self._tokens = tokens

    def pieces(self, special: bytes) -> list[bytes] | None:
        assert special == SPECIAL
        return None if self._tokens is None else list(self._tokens)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


BYTES = Grammars(Bytes, [EOS])
POINT = Grammar(
    "json",
    json.dumps(
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
            "required": ["x", "tags"],
            "additionalProperties": False,
        }
    ),
)


def allowed(mask: bytes) -> list[int]:
    return [index for index in range(8 * len(mask)) if mask[index >> 3] >> (index & 7) & 1]


def feed(matcher: Matcher, data: bytes) -> None:
    for byte in data:
        assert byte in allowed(matcher.mask())
        matcher.accept(byte)


def test_json_by_a_schema() -> None:
    matcher = BYTES.matcher(POINT)
    assert {bytes(PIECES[index]) for index in allowed(matcher.mask())} == {b"{", b'{"'}
    feed(matcher, b'{"x": 12')
    assert set(b"0123456789,") <= set(allowed(matcher.mask()))
    feed(matcher, b', "tags": ["a"]')
    assert not matcher.may_end
    feed(matcher, b"}")
    assert matcher.may_end
    assert matcher.must_end
    assert allowed(matcher.mask()) == [EOS]


def test_a_choice_and_an_expression() -> None:
    matcher = BYTES.matcher(Grammar("choice", '["yes","yesterday"]'))
    assert allowed(matcher.mask()) == [ord("y")]
    feed(matcher, b"yes")
    assert set(allowed(matcher.mask())) == {EOS, ord("t")}
    assert matcher.may_end
    assert not matcher.must_end
    feed(matcher, b"terday")
    assert matcher.must_end
    matcher = BYTES.matcher(Grammar("regex", "[ab]{2}"))
    feed(matcher, b"ab")
    assert matcher.must_end


def test_special_tokens_and_gaps_are_never_allowed() -> None:
    matcher = BYTES.matcher(Grammar("regex", r"(?s:.)*"))
    found = set(allowed(matcher.mask()))
    assert PIECES.index(SPECIAL + b"<s>") not in found
    assert PIECES.index(b"") not in found
    assert {EOS, ord("<"), PIECES.index(b"true")} <= found


def test_an_id_that_may_not_come_is_an_error() -> None:
    matcher = BYTES.matcher(JSON_OBJECT)
    with pytest.raises(EngineFailed, match=r"may not come|cannot be followed"):
        matcher.accept(ord("x"))


def test_what_does_not_compile_is_an_error_here_too() -> None:
    for grammar in (Grammar("json", '{"type":"no"}'), Grammar("grammar", 'root ::= "a'), Grammar("regex", "(")):
        with pytest.raises(EngineFailed, match="compiled"):
            BYTES.matcher(grammar)
    with pytest.raises(EngineFailed, match="bytes"):
        Grammars(lambda: Bytes(None), []).matcher(JSON_OBJECT)


def test_a_model_without_an_end_token() -> None:
    matcher = Grammars(lambda: Bytes(PIECES[:256]), []).matcher(Grammar("regex", "ab?"))
    feed(matcher, b"a")
    assert matcher.may_end
    assert set(allowed(matcher.mask())) == {ord("b"), 256}


async def test_compiled_in_a_thread_once_and_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load() -> Bytes:
        calls.append(1)
        return Bytes()

    monkeypatch.setattr(module, "KEPT", 2)
    grammars = Grammars(load, [EOS])
    assert not calls, "nothing is made before a request needs it"
    kinds = [Grammar("regex", text) for text in "abc"]
    await asyncio.gather(*[grammars.prepare(grammar) for grammar in kinds])
    assert len(calls) == 1
    assert [grammars.ready(grammar) for grammar in kinds].count(True) == 2
    feed(grammars.matcher(kinds[0]), b"a")


@cache
def of_the_sample() -> Grammars:
    source = open_source(sample.path("sample"))
    tokenizer = Tokenizer.from_source(source, use_fast_backend=False)
    return Grammars(lambda: tokenizer, source.eos_ids)


def answer(matcher: Matcher, noise: random.Random, most: int = 400) -> list[int]:
    """Any answer of up to so many tokens, one id after the other."""
    ids: list[int] = []
    ends = matcher.vocabulary.eos_ids
    while not matcher.must_end and len(ids) < most:
        if matcher.may_end and noise.random() < 0.2:
            break
        found = [index for index in allowed(matcher.mask()) if index not in ends]
        ids.append(noise.choice(found))
        matcher.accept(ids[-1])
    return ids


def text(matcher: Matcher, ids: list[int]) -> str:
    return b"".join(matcher.vocabulary.pieces[index] for index in ids).decode()


@given(st.integers(0, 2**32))
def test_whatever_is_chosen_the_answer_has_the_form(seed: int) -> None:
    noise = random.Random(seed)
    matcher = of_the_sample().matcher(POINT)
    ids = answer(matcher, noise)
    if matcher.may_end:
        found = json.loads(text(matcher, ids))
        assert isinstance(found["x"], int)
        assert set(found["tags"]) <= {"a", "b"}
    matcher = of_the_sample().matcher(Grammar("regex", "[a-z]{3,9}-[0-9]+"))
    ids = answer(matcher, noise)
    assert not matcher.may_end or re.fullmatch("[a-z]{3,9}-[0-9]+", text(matcher, ids))


@given(st.integers(0, 2**32), st.data())
def test_a_replay_is_in_the_same_state(seed: int, data: Any) -> None:
    matcher = of_the_sample().matcher(POINT)
    ids = answer(matcher, random.Random(seed), 60)
    cut = data.draw(st.integers(0, len(ids)))
    other = of_the_sample().matcher(POINT)
    other.replay(ids[:cut])
    for index in ids[cut:]:
        assert index in allowed(other.mask())
        other.accept(index)
    assert (other.may_end, other.must_end, other.mask()) == (matcher.may_end, matcher.must_end, matcher.mask())


FORMS = [
    (POINT, b'{"x":1,"tags":[]}'),
    (Grammar("regex", "[a-z]{2}"), b"ab"),
    (Grammar("choice", '["yes","no"]'), b"no"),
    (Grammar("grammar", 'start: "a" | "b" start'), b"ba"),
    (Grammar("grammar", 'root ::= "a" | "b" root'), b"ba"),
]


@pytest.mark.parametrize(("grammar", "answer"), FORMS)
def test_a_form_behind_reasoning(grammar: Grammar, answer: bytes) -> None:
    opened = Grammar(grammar.kind, grammar.text, closing="</think>")
    matcher = BYTES.matcher(opened)
    feed(matcher, b'Hm: {"x": <b> </th </think')
    assert not matcher.may_end
    assert EOS not in allowed(matcher.mask()), "reasoning alone is no answer"
    feed(matcher, b">\n\n" + answer)
    assert matcher.may_end
    for start in (b"", b"<think>Hm.</think>\n"):
        matcher = BYTES.matcher(Grammar(grammar.kind, grammar.text, "<think>", "</think>"))
        feed(matcher, start + answer)
        assert matcher.may_end
    with pytest.raises(EngineFailed):
        BYTES.matcher(Grammar(grammar.kind, grammar.text, "<think>", "</think>")).replay(b"Hm")


def test_calls_in_place_of_a_form() -> None:
    call = b'<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for start in (b"", b"<think>Hm.</think>"):
        for answer in (call, b'{"x":1,"tags":[]}'):
            matcher = BYTES.matcher(Grammar(POINT.kind, POINT.text, "<think>", "</think>", "<tool_call>"))
            feed(matcher, start + answer)
            assert matcher.may_end
    matcher = BYTES.matcher(Grammar(POINT.kind, POINT.text, calls="<tool_call>"))
    assert {bytes(PIECES[index])[:1] for index in allowed(matcher.mask())} == {b"{", b"<"}


def test_each_of_many_choices_is_followed() -> None:
    texts = [f"answer {number}" for number in range(3000)]
    matcher = BYTES.matcher(Grammar("choice", json.dumps(texts)))
    for index in b"answer 2999":
        mask = matcher.mask()
        assert mask[index >> 3] >> (index & 7) & 1
        matcher.accept(index)
    assert matcher.may_end
