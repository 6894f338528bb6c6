"""The two phases of a request at different instances: the prompt in one pool, the answer's continuation in another."""

import asyncio
from typing import Any

import msgspec

from dynamod.engine.mocker.engine import Mocker
from dynamod.ingress.api.completions import Completions
from dynamod.ingress.base import Job
from dynamod.ingress.in_flight import prompt_of
from dynamod.message import tokens
from dynamod.message.ingress import Delta, Failed, Tokens
from dynamod.message.openai import CompletionRequest
from dynamod.message.worker import Generate
from dynamod.preprocess.output import Output
from dynamod.router.placement import DispatcherClient, Placement
from dynamod.transport.base import Sink

REQUEST = CompletionRequest(model="sample", prompt="Once upon a time there was a small actor", max_tokens=24, seed=11)


class Answer(Sink):
    """Collects the ids of one stream."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.over = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        assert not isinstance(delta, Failed), delta.message
        if isinstance(delta, Tokens):
            assert delta.offset == len(self.ids)
            self.ids += tokens.unpack(delta.ids)
            if delta.finish is not None:
                self.over.set()

    def lost(self, why: str) -> None:
        raise AssertionError(why)


async def generate(house: Any, placement: Placement, request: Generate) -> list[int]:
    answer = Answer()
    house.transport.open(placement.instance, request, answer)
    async with asyncio.timeout(20):
        await answer.over.wait()
    return answer.ids


async def test_a_prompt_and_its_continuation_at_different_workers(house, until) -> None:
    await house.start()
    members = {pool: await house.worker(Mocker, pool=pool) for pool in ("", "prefill", "decode")}
    await until(lambda: "sample" in house.processor.cards)
    (whole,) = await (await house.ask(**msgspec.to_builtins(REQUEST))).answers()
    assert whole
    assert {pool: member.actor.statistics().accepted for pool, member in members.items()} == {
        "": 1,
        "prefill": 0,
        "decode": 0,
    }

    client = DispatcherClient(house.processor._dispatcher, house.view)
    job = Job("split", Completions(), REQUEST, b"")
    lowered = await house.processor.lower(job)
    (request,) = lowered.requests
    first = msgspec.structs.replace(request, stops=msgspec.structs.replace(request.stops, max_tokens=1))
    with await client.acquire(lowered.card, prompt_of(job, lowered, 0), pool="prefill") as placement:
        assert placement.instance == members["prefill"].instance
        begun = await generate(house, placement, first)
    assert len(begun) == 1
    with await client.acquire(lowered.card, prompt_of(job, lowered, 0), pool="decode") as placement:
        assert placement.instance == members["decode"].instance
        rest = await generate(house, placement, msgspec.structs.replace(request, prior_output=tokens.pack(begun)))
    assert len(rest) == 23
    model = house.processor.models.tokenizers["sample"]
    output = Output(model.tokenizer, request.stops, request.eos_token_ids, continuing=True)
    assert output.push([*begun, *rest], "length") == whole
    assert {pool: member.actor.statistics().accepted for pool, member in members.items()} == {
        "": 1,
        "prefill": 1,
        "decode": 1,
    }
    assert all(len(router.state.active) == 0 for router in house.processor.dispatch.routers.values())
