"""Models without workers: who asks for one waits until a planner has started one, and is told when none comes."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.discovery.keys import PARKED, card_key, instance_key, parked_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.features.on_demand.parked import GRACE, ParkedModels
from dynamod.ingress.parts import ProcessorContext
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import Overloaded
from dynamod.message.pools import ParkedModel

CARD = ModelCard("m", mdc_sum="x")
WORKER = Instance("n", "Worker", "generate", 7, {})


class Place:
    """A registry with a view of it, and what the models that are parked have had done."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry(random.Random(1))
        self.view = View(self.registry)  # type: ignore[arg-type]  # with leases of its own for each worker
        self.said: list[tuple[str, Any]] = []
        nothing: Any = None
        self.parked = ParkedModels(
            ProcessorContext(
                self.view,
                transport=nothing,
                cards=dict,
                spawn=lambda work, _name: asyncio.ensure_future(work),
                watch=self.view.on_change,
                held=nothing,
                revise=lambda: None,
                keep=lambda card: self.said.append(("keep", card.name)),
                forget=lambda name: self.said.append(("forget", name)),
                check=nothing,
            )
        )
        self.parked.want = lambda name, waits: self.said.append(("want", (name, waits)))
        self.registry.watch(PARKED, self.parked.record)
        self.planner = self.registry.grant()

    async def park(self, problem: str = "", startup: float = 20.0) -> None:
        value = msgspec.json.encode(
            ParkedModel(card=CARD, place="dyn://n.Worker.generate", startup=startup, problem=problem)
        )
        self.registry.put(parked_key(self.planner, "Worker"), value, self.planner)
        await asyncio.sleep(0)

    async def serve(self) -> None:
        self.registry.put(instance_key(WORKER), msgspec.json.encode(WORKER), self.planner)
        self.registry.put(card_key(WORKER), msgspec.json.encode(CARD), self.planner)
        await asyncio.sleep(0)


@virtual
async def test_requests_wait_until_a_worker_is_there() -> None:
    place = Place()
    await place.park()
    assert "m" in place.parked
    assert place.parked.starts(CARD)
    assert place.parked.places({"m"}) == {"dyn://n.Worker.generate"}
    waiting = [asyncio.ensure_future(place.parked.served(CARD, "", 30.0)) for _ in range(3)]
    await asyncio.sleep(5)
    assert not any(one.done() for one in waiting)
    await place.serve()
    await asyncio.gather(*waiting)
    assert not place.parked.starts(CARD), "there is one"
    await place.parked.served(CARD, "", 30.0)
    assert place.said == [("keep", "m"), ("want", ("m", True)), ("want", ("m", False))]


@virtual
async def test_a_worker_that_comes_too_late() -> None:
    place = Place()
    await place.park(startup=42.0)
    with pytest.raises(Overloaded) as error:
        await place.parked.served(CARD, "", 30.0)
    assert "no worker of model 'm' was ready within 30 s" in str(error.value)
    assert error.value.retry_after == pytest.approx(12.0)
    assert place.said[-1] == ("want", ("m", False))


@virtual
async def test_nobody_starts_one() -> None:
    """The planner says why, before anybody waits or meanwhile; when that is over, requests wait again."""
    place = Place()
    await place.park("its planner is paused")
    assert not place.parked.starts(CARD)
    with pytest.raises(Overloaded, match="none is started: its planner is paused"):
        await place.parked.served(CARD, "", 30.0)
    await place.park()
    waiting = asyncio.ensure_future(place.parked.served(CARD, "", 30.0))
    await asyncio.sleep(1)
    await place.park("no GPU is free for it")
    with pytest.raises(Overloaded, match="no GPU is free for it"):
        await waiting


@virtual
async def test_a_planner_that_goes_leaves_its_models_for_a_while() -> None:
    place = Place()
    await place.park()
    place.registry.revoke(place.planner)
    await asyncio.sleep(GRACE / 2)
    place.planner = place.registry.grant()
    await place.park()
    await asyncio.sleep(2 * GRACE)
    assert place.said == [("keep", "m")], "another has come"
    waiting = asyncio.ensure_future(place.parked.served(CARD, "", None))
    place.registry.revoke(place.planner)
    await waiting
    assert place.said[1:] == [("want", ("m", True)), ("forget", "m"), ("want", ("m", False))]
    assert "m" not in place.parked


@virtual
async def test_a_client_that_leaves_wants_nothing_any_more() -> None:
    place = Place()
    await place.park()
    waiting = asyncio.ensure_future(place.parked.served(CARD, "", 30.0))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert place.said[-1] == ("want", ("m", False))


@virtual
async def test_values_that_are_no_records_are_skipped() -> None:
    place = Place()
    for value in (b"", b"{}", b'{"card": {"name": "m"}, "place": "", "startup": "soon"}', b"\xff"):
        place.registry.put(f"{PARKED}1/Worker", value, place.planner)
    await asyncio.sleep(0)
    assert "m" not in place.parked
    assert place.said == []
