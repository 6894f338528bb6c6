"""The mocker where a request asks for a form: it has it, ends by itself, and another mocker goes on with the same."""

import asyncio
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.echo import EchoCore
from dynamod.engine.mocker.constrained import ConstrainedIds, Preferences
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.mocker.output import noise_key
from dynamod.message import tokens
from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Generate, Grammar, Sampling, Stops
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer
from dynamod.structured.demand import JSON_OBJECT
from dynamod.structured.grammars import Grammars

PERSON = Grammar(
    "json",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            },
            "required": ["name", "age", "tags", "friend"],
            "additionalProperties": False,
        }
    ),
)
ADDRESS = Grammar("regex", "[a-z]{3,9}@[a-z]{2,9}[.](com|org)")
CHOICE = Grammar("choice", '["yes","no","perhaps"]')
LIST = Grammar("grammar", 'start: "(" word ("," word)* ")"\nword: /[a-z]+/')
FORMS = [PERSON, ADDRESS, CHOICE, LIST, JSON_OBJECT]


def has_form(grammar: Grammar, text: str) -> bool:
    if grammar.kind == "json":
        found = json.loads(text)
        return isinstance(found, dict) and (grammar is JSON_OBJECT or list(found) == ["name", "age", "tags", "friend"])
    if grammar.kind == "choice":
        return text in json.loads(grammar.text)
    return re.fullmatch(ADDRESS.text if grammar is ADDRESS else r"\([a-z]+(,[a-z]+)*\)", text) is not None


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_source(open_source(sample.path("sample")), use_fast_backend=False)


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer, open_source(sample.path("sample")).eos_ids)


@cache
def preferences() -> Preferences:
    return Preferences(grammars().matcher(CHOICE).vocabulary)


def answer(grammar: Grammar, seed: int, prior: Sequence[int] = (), most: int = 3000, least: int = 0) -> list[int]:
    matcher = grammars().matcher(grammar)
    closing = matcher.vocabulary.encode(grammar.closing)
    made = ConstrainedIds(noise_key(b"prompt", seed), matcher, preferences(), prior, least, closing)
    made.reach(most)
    assert made.error is None
    return list(tokens.unpack(b"".join(made.ids)))


@given(st.sampled_from(FORMS), st.integers(0, 2**40), st.data())
def test_it_has_the_form_and_any_cut_goes_on_the_same(grammar: Grammar, seed: int, data: Any) -> None:
    ids = answer(grammar, seed)
    assert len(ids) < 3000, "it ends"
    assert has_form(grammar, tokenizer().decode(ids))
    cut = data.draw(st.integers(0, len(ids) - 1))
    assert answer(grammar, seed, ids[:cut]) == ids


@pytest.mark.parametrize("grammar", FORMS)
def test_every_cut_of_an_answer(grammar: Grammar) -> None:
    ids = answer(grammar, 11)[:80]
    assert all(answer(grammar, 11, ids[:cut], len(ids))[: len(ids)] == ids for cut in range(len(ids)))


@pytest.mark.parametrize("grammar", FORMS)
def test_the_form_comes_behind_reasoning_that_the_prompt_has_begun(grammar: Grammar) -> None:
    opened = Grammar(grammar.kind, grammar.text, closing="</think>")
    for seed in range(10):
        ids = answer(opened, seed)
        thought, _, text = tokenizer().decode(ids).partition("</think>")
        assert len(thought) > 5
        assert has_form(grammar, text.lstrip(" \n\t"))
        assert all(answer(opened, seed, ids[:cut], len(ids)) == ids for cut in (0, 5, 13, len(ids) - 1))


def test_answers_differ_by_seed() -> None:
    assert len({tuple(answer(PERSON, seed)) for seed in range(20)}) == 20


def test_min_tokens_where_the_form_allows() -> None:
    word = Grammar("regex", "[a-z]+")
    assert min(len(answer(word, seed)) for seed in range(20)) < 5
    assert all(len(answer(word, seed, least=20)) >= 20 for seed in range(20))


@pytest.mark.parametrize("text", ["", "(ab)?"])
def test_nothing_is_an_answer_too(text: str) -> None:
    made = ConstrainedIds(b"key", grammars().matcher(Grammar("regex", text or "()")), preferences())
    assert made.empty == (not text)
    made.reach(10)
    assert len(made.ids) >= 1


def test_ids_that_the_form_does_not_allow_are_refused() -> None:
    with pytest.raises(EngineFailed):
        answer(PERSON, 1, [5, 6, 7])


def request(grammar: Grammar, prior: Sequence[int] = (), seed: int = 3, **stops: Any) -> Generate:
    sampling = Sampling(seed=seed)
    return Generate(
        "r", "m", tokens.pack(range(100)), Stops(**stops), sampling, prior_output=tokens.pack(prior), grammar=grammar
    )


def options(name: str) -> EngineOptions:
    arguments = {"block_size": 4, "num_gpu_blocks": 400, "speedup_ratio": 0}
    return EngineOptions(name, sample.path("sample"), arguments=arguments)


async def test_in_a_worker(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, Mocker, options("m")).start()
        assert house.published[0].capabilities.grammars
        plain = await house.ask(words.generate(list(range(100)), seed=3, max_tokens=20)).wait()
        assert house.workers[-1]._engine._grammars is None, "nobody has asked for a form"
        other = await words.House(system, Mocker, options("o")).start("other")
        for grammar in FORMS:
            whole = await house.ask(request(grammar)).wait()
            assert whole.finish == "stop"
            assert has_form(grammar, tokenizer().decode(whole.ids))
            assert len(whole.deltas) - 2 == len(whole.ids), "one token per step, the last one with the finish"
            for cut in range(0, len(whole.ids), 7):
                rest = await other.ask(request(grammar, whole.ids[:cut])).wait()
                assert whole.ids[:cut] + rest.ids == whole.ids
                assert rest.finish == "stop"
        again = await house.ask(words.generate(list(range(100)), seed=3, max_tokens=20)).wait()
        assert again.ids == plain.ids
        assert house.statistics.engine.active_blocks == 0


async def test_limits_and_what_is_wrong(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, Mocker, options("m")).start()
        short = await house.ask(request(PERSON, max_tokens=5)).wait()
        assert (short.finish, len(short.ids)) == ("length", 5)
        whole = await house.ask(request(PERSON)).wait()
        exact = await house.ask(request(PERSON, max_tokens=len(whole.ids))).wait()
        assert (exact.finish, exact.ids) == ("stop", whole.ids)
        empty = await house.ask(request(Grammar("regex", "()"))).wait()
        assert (empty.finish, empty.ids) == ("stop", [])
        over = await house.ask(request(PERSON, whole.ids)).wait()
        assert (over.finish, over.ids) == ("stop", [])
        for wrong in (request(Grammar("regex", "(")), request(PERSON, [1, 2, 3])):
            failed = await house.ask(wrong).wait()
            assert failed.error is not None
            assert failed.error.error == "EngineFailed"
        left = house.ask(request(Grammar("regex", "[a-z]{50}-new")))
        left.stream.cancel()
        await words.until(lambda: house.statistics.open == 0)
        assert house.statistics.engine.running == house.statistics.engine.active_blocks == 0


async def test_another_engine_refuses_it(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, EchoCore, EngineOptions("e", sample.path("sample"))).start()
        failed = await house.ask(request(PERSON)).wait()
        assert failed.error is not None
        assert failed.error.error == "BadRequest"


async def test_many_at_once_with_few_blocks(words: Any) -> None:
    """Answers that give way to others, and come back, are the same."""

    async with System() as system:
        house = await words.House(system, Mocker, options("m")).start()
        few = EngineOptions(
            "few",
            sample.path("sample"),
            arguments={"block_size": 4, "num_gpu_blocks": 120, "speedup_ratio": 0, "watermark": 0},
        )
        small = await words.House(system, Mocker, few).start("small")
        wanted = [request(PERSON, seed=seed, max_tokens=300) for seed in range(12)]
        expected = [(await house.ask(one).wait()).ids for one in wanted]
        answers = await asyncio.gather(*[small.ask(one).wait() for one in wanted])
        assert [one.ids for one in answers] == expected
        assert small.statistics.engine.preemptions > 0
