"""Which models a change leaves without a worker: by role, by adapter, on all nodes."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.control.last_worker import LastWorker, ModelWorker, lost, require_others
from dynamod.discovery.keys import (
    PARKED,
    card_key,
    exited_key,
    instance_key,
    quarantine_key,
    static_card_key,
    static_key,
)
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.discovery import PREFILL, Adapter, Capabilities, Instance, ModelCard
from dynamod.message.pools import ParkedModel

CARD = ModelCard("m", capabilities=Capabilities(role_switch=True))
HELPER = msgspec.structs.replace(CARD, types=())


@pytest.mark.parametrize(
    ("places", "gone", "roles", "models"),
    [
        ([(1, CARD, "")], {1}, {}, {"m"}),
        ([(1, CARD, ""), (2, CARD, "")], {1}, {}, set()),
        ([(1, CARD, ""), (2, CARD, "")], {1, 2}, {}, {"m"}),
        ([(1, CARD, ""), (2, HELPER, PREFILL)], {1}, {}, {"m"}),
        ([(1, CARD, ""), (2, HELPER, PREFILL)], {2}, {}, set()),
        ([(1, CARD, "")], (), {1: "prefill"}, {"m"}),
        ([(1, CARD, "")], (), {1: "decode"}, set()),
        ([(1, CARD, ""), (2, HELPER, PREFILL)], (), {1: "prefill", 2: "decode"}, set()),
        ([(2, HELPER, PREFILL)], {2}, {}, set()),  # it was not served before
        ([(1, CARD, ""), (2, ModelCard("other"), "")], {2}, {}, {"other"}),
    ],
)
def test_models_that_are_lost(places: Any, gone: Any, roles: Any, models: set[str]) -> None:
    assert lost([ModelWorker(*one) for one in places], gone, roles) == models


def test_an_adapter_that_only_one_worker_has_is_lost_with_it() -> None:
    with_one = msgspec.structs.replace(CARD, adapters=(Adapter("mine"),))
    places = [ModelWorker(1, CARD, ""), ModelWorker(2, with_one, "")]
    assert (lost(places, {1}, {}), lost(places, {2}, {})) == (set(), {"mine"})


def test_a_model_whose_workers_compute_no_prompts_is_lost_with_its_prefill_worker() -> None:
    needs = Capabilities(needs_prefill=True, role_switch=True)
    places = [
        ModelWorker(1, ModelCard("m", capabilities=needs), ""),
        ModelWorker(2, ModelCard("m", types=(), capabilities=needs), PREFILL),
    ]
    assert lost(places, {2}, {}) == lost(places, (), {2: "decode"}) == {"m"}


class Node:
    """A node with a real registry; each worker has the pid of its lease."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry(random.Random(1))
        self.pids: dict[int, int] = {}
        self.link = SimpleNamespace(leases=lambda: self.pids)
        self.states: dict[int, str] = {}
        self.graphs = SimpleNamespace(rows=self.rows)
        self.graph: Any = SimpleNamespace(graph=SimpleNamespace(services={}))

    def rows(self) -> list[Any]:
        states = {pid: self.states.get(pid, "Ready") for pid in self.pids}
        return [SimpleNamespace(pid=pid, state=state) for pid, state in states.items() if state]

    def worker(self, *, foreign: bool = False, card: ModelCard = CARD) -> int:
        pid = lease = len(self.pids) + 100 if not foreign else 7
        instance = Instance("n", "Worker", "generate", lease, {}, pool="" if card.types else PREFILL)
        keys = {instance_key(instance): instance, card_key(instance): card}
        if foreign:
            for key, value in keys.items():
                self.registry.put_foreign(key, msgspec.json.encode(value))
            return 0
        self.registry.grant(lease)
        self.pids[pid] = lease
        for key, value in keys.items():
            self.registry.put(key, msgspec.json.encode(value), lease)
        return pid

    def refuses(self, *pids: int, role: str = "", by_hand: bool = True) -> bool:
        try:
            require_others(self, self.graph, "Worker", pids, role, by_hand=by_hand)  # type: ignore[arg-type]
        except LastWorker:
            return True
        return False


def test_the_refusal_is_one_line_that_names_the_flag() -> None:
    assert LastWorker({"m"}, "Worker").line() == (
        "model m will not be served: no worker other than Worker serves it; use `--force` to do it nevertheless "
        "(`force` in the control API)"
    )
    assert str(LastWorker({"b", "a"}, "W")) == "models a, b will not be served: no worker other than W serves them"


def test_the_last_worker_of_all_nodes() -> None:
    node = Node()
    only = node.worker()
    assert node.refuses(only)
    assert node.refuses(only, role="prefill")
    assert not node.refuses(only, role="decode")
    assert not node.refuses(), "nothing ends"
    node.worker(foreign=True)
    assert not node.refuses(only), "another node serves it"
    for key in (exited_key(7), quarantine_key(7)):
        node.registry.put_foreign(key, b"gone")
        assert node.refuses(only), "the other node's worker answers nothing"
        node.registry.delete_foreign(key)


def test_a_worker_without_a_row_is_no_other_worker() -> None:
    """The process has ended, and its lease lives on for a moment; or the process takes long to end after its kill."""
    node = Node()
    killed, only = node.worker(), node.worker()
    assert not node.refuses(only)
    node.states[killed] = ""
    assert node.refuses(only)
    del node.pids[killed]
    assert node.refuses(only)


def test_a_static_worker_is_the_only_one_at_its_address() -> None:
    node = Node()
    node.worker()
    lease = node.registry.grant()
    node.pids[lease] = lease
    instance = Instance("n", "backend", "generate", lease, {})
    node.registry.put(static_key(instance), msgspec.json.encode(instance), lease)
    assert not node.refuses(lease), "an endpoint without a model"
    node.registry.put(static_card_key(instance), msgspec.json.encode(CARD), lease)
    with pytest.raises(LastWorker, match=r"^model m at dyn://n\.backend\.generate will not be served: "):
        require_others(node, node.graph, "Worker", [lease])  # type: ignore[arg-type]
    assert not node.refuses(lease, role="prefill"), "it keeps its role, and says so itself"
    node.states[lease] = "Draining"
    assert not node.refuses(lease), "it leaves in any case"


def test_a_worker_that_leaves_already_is_no_other_one() -> None:
    node = Node()
    one, two = node.worker(), node.worker()
    assert not node.refuses(one)
    node.states[two] = "Draining"
    assert node.refuses(one)
    assert not node.refuses(two), "it leaves in any case"


def test_an_engine_that_cannot_switch_is_refused_by_its_worker() -> None:
    node = Node()
    assert not node.refuses(node.worker(card=ModelCard("m")), role="prefill")


def test_a_model_whose_workers_start_on_demand_is_served_without_one() -> None:
    node = Node()
    only = node.worker()
    record = ParkedModel(card=CARD, place="dyn://n.Worker.generate", startup=1.0)
    node.registry.put_foreign(f"{PARKED}1/Worker", msgspec.json.encode(record))
    assert not node.refuses(only, by_hand=False)
    assert node.refuses(only), "a planner leaves alone what is changed by hand"
    node.graph = SimpleNamespace(graph=SimpleNamespace(services={"P": SimpleNamespace(component_kind="ondemand")}))
