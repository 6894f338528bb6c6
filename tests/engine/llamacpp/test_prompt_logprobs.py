"""Log probabilities of prompts: those that the same tokens had when they were an answer."""

import asyncio
import os
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.llamacpp.scores import SCORED
from dynamod.message import tokens
from dynamod.message.ingress import Logprobs, PromptLogprobs, Tokens
from dynamod.message.worker import Generate, Sampling, Stops

pytestmark = pytest.mark.engine

NEAR = 0.02
"""Floats depend on how many tokens a step computes."""
PROMPT = [7 + 3 * number % 900 for number in range(40)]


async def serve(words: Any, system: System, **arguments: Any) -> Any:
    options = EngineOptions("m", sample.path("sample.gguf"), arguments=arguments)
    return await words.House(system, LlamaCpp, options).start()


def asked(ids: list[int], prior: list[int] = [], **fields: Any) -> Generate:  # noqa: B006 - it is not changed
    stops = Stops(max_tokens=fields.pop("max_tokens", 1), ignore_eos=True)
    sampling = Sampling(temperature=0.0, **fields)
    return Generate("r", "m", tokens.pack(ids), stops, sampling, prior_output=tokens.pack(prior))


def prompt_of(answer: Any) -> PromptLogprobs:
    (found,) = [delta for delta in answer.deltas if isinstance(delta, PromptLogprobs)]
    assert isinstance(found, PromptLogprobs)
    before = answer.deltas[: answer.deltas.index(found)]
    assert not [delta for delta in before if isinstance(delta, Tokens) and delta.ids], "before the first token"
    return found


async def test_they_are_those_of_the_same_answer(words: Any, system: System) -> None:
    house = await serve(words, system)
    count = 2 * SCORED + 9
    answer = await house.ask(asked(PROMPT, max_tokens=count, logprobs=3)).wait(30)
    told = [delta for delta in answer.deltas if isinstance(delta, Logprobs)]
    assert len(answer.ids) == len(told) == count
    scored = await house.ask(asked([*PROMPT, *answer.ids], prompt_logprobs=3)).wait(30)
    found = prompt_of(scored)
    assert (found.chosen[0], found.top[0]) == (None, ())
    assert len(found.chosen) == len(found.top) == len(PROMPT) + count
    assert found.chosen[len(PROMPT) :] == pytest.approx([delta.chosen[0] for delta in told], abs=NEAR, rel=NEAR)
    for top, delta in zip(found.top[len(PROMPT) :], told, strict=True):
        assert top[0][0] == delta.top[0][0][0]
        assert dict(top) == pytest.approx(dict(delta.top[0]), abs=NEAR, rel=NEAR)
    assert len(scored.ids) == 1
    again = await house.ask(asked([*PROMPT, *answer.ids], prompt_logprobs=0)).wait(30)
    assert prompt_of(again).chosen[1:] == pytest.approx(found.chosen[1:], abs=NEAR, rel=NEAR), (
        "although all of it is cached now"
    )
    assert prompt_of(again).top == ()
    assert next(delta.cached_tokens for delta in again.deltas if isinstance(delta, Tokens)) == 0


async def test_nothing_is_generated_for_a_prompt_alone(words: Any, system: System) -> None:
    house = await serve(words, system)
    one = await house.ask(asked(PROMPT, prompt_logprobs=1)).wait(30)
    none = await house.ask(asked(PROMPT, prompt_logprobs=1, max_tokens=0)).wait(30)
    assert (none.ids, none.finish) == ([], "length")
    assert prompt_of(none).chosen[1:] == pytest.approx(prompt_of(one).chosen[1:], abs=NEAR, rel=NEAR)
    short = await house.ask(asked(PROMPT[:1], prompt_logprobs=1, max_tokens=0)).wait(30)
    assert prompt_of(short).chosen == (None,)
    moved = await house.ask(asked(PROMPT, PROMPT[:5], prompt_logprobs=1, max_tokens=6)).wait(30)
    assert len(prompt_of(moved).chosen) == len(PROMPT), "what another instance has made is no prompt"
    assert len(moved.ids) == 1


async def test_many_at_once_and_beside_others(words: Any, system: System) -> None:
    house = await serve(words, system, n_parallel=4)
    plain = await house.ask(asked(PROMPT, max_tokens=30)).wait(30)
    alone = [prompt_of(await house.ask(asked(PROMPT[first:], prompt_logprobs=0)).wait(30)) for first in range(6)]
    others = [house.ask(asked(PROMPT, max_tokens=30)) for _ in range(2)]
    together = [house.ask(asked(PROMPT[first:], prompt_logprobs=0)) for first in range(6)]
    async with asyncio.timeout(30):
        for answer, expected in zip(together, alone, strict=True):
            await answer.wait()
            assert prompt_of(answer).chosen[1:] == pytest.approx(expected.chosen[1:], abs=NEAR, rel=NEAR)
        for other in others:
            assert (await other.wait()).ids == plain.ids
