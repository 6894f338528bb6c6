"""Answers that keep to a form: the sampler with a matcher, and the real llama.cpp with the sample model."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.sampling import Sampler
from dynamod.message import tokens
from dynamod.message.errors import EngineFailed
from dynamod.message.openai import ChatRequest, Message
from dynamod.message.worker import Generate, Grammar, Sampling, Stops
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model

COUNT = 40


class Allows:
    """In place of a matcher: the ids that may come, whatever has come."""

    def __init__(self, allowed: set[int]) -> None:
        self.allowed = allowed

    def mask(self) -> bytes:
        return sum([1 << index for index in self.allowed]).to_bytes(8, "little")

    def accept(self, index: int) -> None:
        if index not in self.allowed:
            raise EngineFailed("not allowed")


rows = st.lists(st.floats(-30, 30, width=32), min_size=COUNT, max_size=COUNT)


@given(
    rows,
    st.sets(st.integers(0, 63), min_size=1).filter(lambda allowed: min(allowed) < COUNT),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.sampled_from([None, 3]),
    st.sampled_from([None, 0.5]),
    st.sampled_from([None, 1.5]),
    st.integers(0, 2**40),
    st.sets(st.integers(0, COUNT - 1), max_size=3),
)
def test_only_what_may_come_is_chosen(
    row: list[float],
    allowed: set[int],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    penalty: float | None,
    seed: int,
    forbidden: set[int],
) -> None:
    bias = dict.fromkeys(range(0, COUNT, 7), 50.0)
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty, logit_bias=bias, logprobs=2
    )
    sampler = Sampler(sampling, COUNT, seed, [1, 2], [3], forbidden, 5, Allows(allowed))  # type: ignore[arg-type]
    assert not sampler.plain
    values = np.array(row, np.float32)
    here = {index for index in allowed if index < COUNT}
    for _ in range(6):
        held = here - forbidden if sampler.position < 5 else here
        picked = sampler.pick(values)
        assert picked.index in (held or here)
        assert picked.logprob is not None, "of the raw logits"
        sampler.take(picked.index)
    assert values.tolist() == [float(np.float32(value)) for value in row], "the row is not changed"


def test_without_a_choice_nothing_is_drawn() -> None:
    row = np.full(COUNT, np.nan, np.float32)
    sampler = Sampler(Sampling(temperature=1.0), COUNT, 1, matcher=Allows({7}))  # type: ignore[arg-type]
    assert sampler.pick(row).index == 7


def test_an_answer_that_left_its_form_fails_alone() -> None:
    sampler = Sampler(Sampling(), COUNT, 1, matcher=Allows({7, 8}))  # type: ignore[arg-type]
    sampler.take(3)
    sampler.take(7)
    with pytest.raises(EngineFailed):
        sampler.pick(np.zeros(COUNT, np.float32))


# The engine.

PERSON = Grammar(
    "json",
    json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "big": {"type": "boolean"}},
            "required": ["city", "big"],
            "additionalProperties": False,
        }
    ),
)


class Asked:
    """A worker with the engine, and what its model encodes and decodes."""

    def __init__(self, house: Any) -> None:
        self.house = house
        card = house.published[0]
        self.ends = card.eos_token_ids
        self.model = Model.load(read_card(sample.path("sample.gguf"), name="m"))

    def request(self, grammar: Grammar | None, prior: list[int] | None = None, **fields: Any) -> Generate:
        chat = ChatRequest(model="m", messages=[Message(role="user", content="What is the capital of France?")])
        ids = self.model.encode(self.model.prepare_chat(chat), "r").token_ids
        stops = Stops(**{"max_tokens": 200, **fields.pop("stops", {})})
        sampling = Sampling(**{"temperature": 0.0, "seed": 1, **fields})
        prior_output = tokens.pack(prior or [])
        return Generate("r", "m", ids, stops, sampling, self.ends, prior_output=prior_output, grammar=grammar)

    async def ask(self, grammar: Grammar | None, prior: list[int] | None = None, **fields: Any) -> Any:
        return await self.house.ask(self.request(grammar, prior, **fields)).wait(30)

    def text(self, ids: list[int]) -> str:
        return self.model.tokenizer.decode([index for index in ids if index not in self.ends])


@pytest.fixture
async def served(words: Any) -> AsyncIterator[Asked]:
    pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")
    from dynamod.engine.llamacpp.engine import LlamaCpp

    async with System() as system:
        options = EngineOptions("m", sample.path("sample.gguf"), arguments={"n_threads": 1, "n_threads_batch": 1})
        yield Asked(await words.House(system, LlamaCpp, options).start())


@pytest.mark.engine
async def test_json_choices_and_expressions(served: Asked) -> None:
    assert served.house.published[0].capabilities.grammars
    for fields in ({}, {"temperature": 1.5, "seed": 7}, {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3}):
        answer = await served.ask(PERSON, **fields)
        assert answer.finish == "stop"
        found = json.loads(served.text(answer.ids))
        assert list(found) == ["city", "big"]
    answer = await served.ask(Grammar("choice", '["Lyon","Paris","Nice"]'))
    assert served.text(answer.ids) in ("Lyon", "Paris", "Nice")
    answer = await served.ask(Grammar("regex", "The capital of France is [A-Z][a-z]+[.]"))
    assert served.text(answer.ids) == "The capital of France is Paris."


@pytest.mark.engine
async def test_a_continuation_is_the_same_answer(served: Asked) -> None:
    whole = (await served.ask(PERSON)).ids
    for cut in range(len(whole)):
        rest = await served.ask(PERSON, whole[:cut])
        assert whole[:cut] + rest.ids == whole
        assert rest.finish == "stop"
    failed = await served.ask(PERSON, [5, 6])
    assert failed.error.error == "EngineFailed"


@pytest.mark.engine
async def test_its_end_and_its_neighbours(served: Asked) -> None:
    plain = await served.ask(None)
    mixed = await asyncio.gather(*[served.ask(form) for form in (None, PERSON, None, PERSON)])
    assert [one.ids for one in mixed[::2]] == [plain.ids] * 2
    assert mixed[1].ids == mixed[3].ids
    for stops in ({"ignore_eos": True}, {"min_tokens": 150}):
        answer = await served.ask(PERSON, stops=stops)
        assert answer.finish in ("stop", "length")
        json.loads(served.text(answer.ids))
    short = await served.ask(PERSON, stops={"max_tokens": 3})
    assert (short.finish, len(short.ids)) == ("length", 3)
