"""Which models can be asked: the card is loaded, and a request would be placed."""

import random
from collections.abc import Collection
from typing import Any

import msgspec

from dynamod.discovery.keys import (
    card_key,
    exited_key,
    instance_key,
    quarantine_key,
)
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.ingress.askable import AskableModels
from dynamod.ingress.parts import ProcessorContext, ProcessorPart, ProcessorParts
from dynamod.message.discovery import PREFILL, Capabilities, Instance, ModelCard

CARD = ModelCard("m", mdc_sum="x")
HELPER = msgspec.structs.replace(CARD, types=())


class Starting(ProcessorPart):
    """It starts workers of each model, or none for a `problem`."""

    problem = ""

    def places(self, names: Collection[str]) -> Collection[str]:
        return () if self.problem else {"dyn://n.Worker.generate"} if names else ()

    def can_start(self, name: str) -> bool:
        return not self.problem


class Place:
    """A registry with a view of it, cards that a test loads, and what was announced."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry(random.Random(1))
        self.view = View(self.registry)  # type: ignore[arg-type]  # with leases of its own for each worker
        self.cards: dict[str, ModelCard] = {}
        self.kept: set[str] = set()
        self.coming: dict[str, ModelCard] = {}
        self.told: list[tuple[str, bool]] = []
        self.parts = ProcessorParts()
        self.askable = AskableModels(
            self.view,
            lambda: self.cards,
            self.kept.__contains__,
            self.coming.get,
            self.parts,
            lambda name, card: self.told.append((name, card is not None)),
        )
        self.view.on_change(self.askable.look)
        self.daemon = self.registry.grant()

    def worker(self, card: ModelCard | None = CARD, pool: str = "", endpoint: str = "generate") -> Instance:
        lease = self.registry.grant()
        instance = Instance("n", "Worker", endpoint, lease, {"unix": "/secret"}, pool=pool)
        self.put(instance_key(instance), instance, lease)
        if card is not None:
            self.put(card_key(instance), card, lease)
        return instance

    def load(self, card: ModelCard = CARD) -> None:
        self.cards[card.name] = card
        self.askable.look()

    def put(self, key: str, value: Any, lease: int) -> None:
        self.registry.put(key, msgspec.json.encode(value), lease)

    def mark(self, key: str, here: bool = True) -> None:
        if here:
            self.registry.put(key, b"why", self.daemon)
        else:
            self.registry.delete(key, self.daemon)

    @property
    def ids(self) -> list[int]:
        return [row["instance_id"] for row in self.askable.health()["instances"]]


def test_a_worker_counts_when_its_card_is_loaded() -> None:
    place = Place()
    worker = place.worker()
    assert (place.askable.models(), place.askable.health()) == ({}, {"endpoints": [], "instances": []})
    place.load()
    assert set(place.askable.models()) == {"m"}
    health = place.askable.health()
    assert health["endpoints"] == ["dyn://n.Worker.generate"]
    assert [row["instance_id"] for row in health["instances"]] == [worker.instance_id]
    assert "transport" not in health["instances"][0], "sockets are for processes inside"
    place.load()
    assert place.told == [("m", True)], "once"


def test_a_stuck_or_ended_worker_takes_no_request() -> None:
    place = Place()
    one, two = place.worker(), place.worker()
    place.load()
    for key in (quarantine_key, exited_key):
        place.mark(key(one.instance_id))
        assert (set(place.askable.models()), place.ids) == ({"m"}, [two.instance_id])
        place.mark(key(two.instance_id))
        assert (place.askable.models(), place.ids) == ({}, [])
        place.mark(key(one.instance_id), here=False)
        place.mark(key(two.instance_id), here=False)
        assert len(place.ids) == 2
    assert place.told == [("m", True), ("m", False), ("m", True), ("m", False), ("m", True)]


def test_prefill_workers_alone_serve_no_model() -> None:
    place = Place()
    worker = place.worker()
    place.load()
    helper = place.worker(HELPER, PREFILL)
    assert set(place.ids) == {worker.instance_id, helper.instance_id}
    place.registry.revoke(worker.instance_id)
    assert (place.askable.models(), place.ids) == ({}, [])
    assert place.askable.health()["endpoints"] == []


def test_a_model_whose_workers_compute_no_prompts_needs_a_prefill_worker() -> None:
    place = Place()
    card = msgspec.structs.replace(CARD, capabilities=Capabilities(needs_prefill=True))
    place.worker(card)
    place.load(card)
    assert place.askable.models() == {}
    helper = place.worker(msgspec.structs.replace(card, types=()), PREFILL)
    assert set(place.askable.models()) == {"m"}
    place.registry.revoke(helper.instance_id)
    assert place.askable.models() == {}


def test_a_worker_with_other_files_does_not_count() -> None:
    place = Place()
    place.load()
    place.worker(msgspec.structs.replace(CARD, mdc_sum="other"))
    assert (place.askable.models(), place.ids) == ({}, [])


def test_requests_wait_while_the_card_of_changed_workers_is_loaded() -> None:
    place = Place()
    old = place.worker()
    place.load()
    changed = msgspec.structs.replace(CARD, mdc_sum="other")
    place.worker(changed)
    place.coming["m"] = changed
    place.registry.revoke(old.instance_id)
    assert set(place.askable.models()) == {"m"}
    assert place.askable.health()["endpoints"] == ["dyn://n.Worker.generate"]
    del place.coming["m"]
    assert place.askable.models() == {}, "it cannot be loaded"
    place.load(changed)
    assert set(place.askable.models()) == {"m"}


def test_endpoints_without_a_model_are_instances() -> None:
    place = Place()
    own = place.worker(None, endpoint="mine")
    place.worker(None, endpoint="load_metrics")
    assert place.ids == [own.instance_id]
    assert place.askable.health()["endpoints"] == []


def test_a_model_whose_workers_start_on_demand_can_be_asked_unless_none_can_start() -> None:
    place = Place()
    place.kept.add("m")
    place.load()
    assert set(place.askable.models()) == {"m"}

    context: ProcessorContext = None  # type: ignore[assignment]  # the part asks it nothing
    place.parts["starting"] = part = Starting(context)

    def park(problem: str) -> None:
        part.problem = problem
        place.askable.look()

    park("")
    assert place.askable.health()["endpoints"] == ["dyn://n.Worker.generate"]
    park("no GPU is free")
    assert (place.askable.models(), place.askable.health()["endpoints"]) == ({}, [])
    place.worker()
    assert set(place.askable.models()) == {"m"}
    assert place.told == [("m", True), ("m", False), ("m", True)]
