"""What a feature keeps in workers and processors: the toy `visits`."""

import asyncio
from typing import Any

import aiohttp
import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.message.worker import Describe
from dynamod.migration.stages import Ask
from dynamod.preprocess.card import read_card
from dynamod.router.router import Prompt

pytestmark = pytest.mark.usefixtures("toys")


def visit(guest: str) -> Any:
    from dynamod.features.visits.worker import Visit  # type: ignore[import-not-found]

    return Visit("r", guest)


@virtual
async def test_messages_of_a_feature_reach_its_part_of_the_worker(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        answer = await house.ask(visit("Ann")).wait()
        assert answer.accepted
        assert [item for one in answer.deltas if hasattr(one, "items") for item in one.items] == [b"mocker: Ann"]
        assert house.workers[-1].parts["visits"].guests == ["Ann"]
        assert len(house.published) == 2, "the part has published the card again"
        refused = (await house.ask(visit("")).wait()).error
        assert (refused.error, refused.message, refused.param) == ("BadRequest", "`guest` is empty", "guest")
        broken = (await house.ask(visit("nobody")).wait()).error
        assert (broken.error, "raised KeyError" in broken.message) == ("EngineFailed", True)
        assert (await house.ask(Describe("d")).wait()).error is None
        assert house.statistics.refused == 0


@virtual
async def test_a_message_of_a_feature_that_is_off_is_refused_with_its_name(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-colours,-visits")
    async with System() as system:
        house = await words.mocker(system)
        error = (await house.ask(visit("Ann")).wait()).error
        assert (error.error, error.code) == ("BadRequest", "feature_off")
        assert "belong to the feature 'visits', which is off: switched off by DYNAMOD_FEATURES" in error.message
        assert (house.workers[-1].parts, house.statistics.refused) == ({}, 1)


async def test_a_route_reaches_the_part_of_the_processor(house: Any, serve: Any, until: Any) -> None:
    processor = await house.start()
    await house.worker()
    await until(lambda: processor.cards)
    url = await serve()
    async with aiohttp.ClientSession() as client, client.get(f"{url}/v1/visits") as answer:
        assert await answer.json() == {"prepared": True, "component": "", "linked": False, "models": ["sample"]}


async def test_a_part_says_what_a_model_without_workers_will_serve(house: Any, until: Any) -> None:
    processor = await house.start()
    processor.models.keep(read_card(sample.path("sample"), name="sample"))
    await until(lambda: set(processor.cards) == {"sample"})
    processor.parts["visits"].admit()
    assert set(processor.cards) == {"sample", "visitor"}


async def test_a_part_waits_for_a_worker_of_a_model_without_workers(house: Any, until: Any) -> None:
    processor = await house.start()
    part = processor.parts["visits"]
    processor.models.keep(read_card(sample.path("sample"), name="sample"))
    await until(lambda: house.backend.askable())
    assert house.backend.health()["endpoints"] == ["dyn://n.sample.generate"]
    part.shut = True
    assert (house.backend.askable(), house.backend.health()["endpoints"]) == ({}, [])
    part.shut = False
    served: list[int] = []

    async def visit() -> None:
        async with part.context.held("sample"):
            served.append(len(house.view.served("sample").instances))

    waiting = asyncio.ensure_future(visit())
    asked = asyncio.ensure_future(house.ask(max_tokens=3))
    await until(lambda: part.waiting == ["sample", "sample"])
    worker = await house.worker()
    await waiting
    assert served == [1]
    assert (await (await asked).wait()).error is None
    assert part.waiting == []
    house.leave(worker)
    card = processor.cards["sample"]
    place = asyncio.ensure_future(processor.requests.acquire(card, Prompt("r", 1), 0, None, Ask((), again=True)))
    await until(lambda: part.waiting == ["sample"])
    await house.worker()
    (await place).release()
    assert part.waiting == []
