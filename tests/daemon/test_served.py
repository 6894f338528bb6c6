"""Which models can be asked at a node: what ingress processes publish decides, for each row and each graph."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec

from dynamod.daemon.runner import GraphRunner
from dynamod.daemon.served import NOT_LOADED, ServedModels
from dynamod.discovery.keys import card_key, instance_key, quarantine_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.message.discovery import Adapter, Instance, ModelCard
from dynamod.message.rows import Row
from dynamod.runtime.components.served import SERVED, ServedModel

KINDS = {"Frontend": "frontend", "Processor": "processor", "Worker": "worker"}


class Runner(GraphRunner):
    """A graph whose processes are given by a test: a component with its process id and state."""

    def __init__(self, name: str, *processes: tuple[str, int, str]) -> None:
        self.name = name
        self.processes_given = [*processes]
        self.graph = SimpleNamespace(  # type: ignore[assignment]
            services={one: SimpleNamespace(component_kind=kind) for one, kind in KINDS.items()}
        )

    def rows(self, *, leaving: bool = True) -> list[Row]:
        return [Row(self.name, one, f"{self.name}/{one}.0", 0, state, pid) for one, pid, state in self.processes_given]

    def components(self) -> list[str]:
        return [one for one, _, _ in self.processes_given]


class Node:
    """A registry, and the leases of processes, by process id."""

    def __init__(self, *graphs: Runner) -> None:
        self.graphs = SimpleNamespace(running={graph.name: graph for graph in graphs})
        self.registry = MemoryRegistry(random.Random(1))
        self.connections: list[Any] = []
        pids = {pid for graph in graphs for _, pid, _ in graph.processes_given}
        self.pids = {pid: self.registry.grant(pid) for pid in pids}
        self.link = SimpleNamespace(leases=lambda: self.pids, connections=self.connections)
        self.daemon = self.registry.grant()

    def publish(self, pid: int, card: ModelCard, state: str = "ready") -> None:
        instance = Instance("n", "Worker", "generate", pid, {}, state=state)  # type: ignore[arg-type]
        self.registry.put(instance_key(instance), msgspec.json.encode(instance), pid)
        self.registry.put(card_key(instance), msgspec.json.encode(card), pid)

    def ask(self, pid: int, *models: str) -> None:
        for name in models:
            served = ServedModel("chat", name, "n", "Processor", "chat/completions")
            self.registry.put(f"{SERVED}chat/{name}/{pid:x}", msgspec.json.encode(served), pid)

    @property
    def look(self) -> ServedModels:
        return ServedModels(self)  # type: ignore[arg-type]

    def shown(self, graph: str) -> list[tuple[str, list[str], str]]:
        look = self.look
        return [(row.component, row.models, row.detail) for row in map(look.row, self.graphs.running[graph].rows())]


def agg() -> Runner:
    return Runner("agg", ("Frontend", 1, "Ready"), ("Processor", 1, "Ready"), ("Worker", 2, "Ready"))


def test_a_worker_counts_when_an_ingress_can_route_to_it() -> None:
    graph = agg()
    node = Node(graph)
    state = node.look.graph(graph)
    assert (state.ready, state.models, state.silent, node.look.models()) == (False, [], True, [])
    node.publish(2, ModelCard("m"))
    assert node.shown("agg")[2] == ("Worker", [], NOT_LOADED)
    assert not node.look.graph(graph).ready
    node.ask(1, "m")
    assert node.shown("agg") == [("Frontend", ["m"], ""), ("Processor", ["m"], ""), ("Worker", ["m"], "")]
    state = node.look.graph(graph)
    assert (state.ready, state.models, state.silent, node.look.models()) == (True, ["m"], False, ["m"])
    graph.processes_given[2] = ("Worker", 2, "Starting")
    assert not node.look.graph(graph).ready, "not all processes are Ready"


def test_stuck_processes_do_not_count() -> None:
    graph = agg()
    node = Node(graph)
    node.publish(2, ModelCard("m"))
    node.ask(1, "m")
    node.registry.put(quarantine_key(2), b"why", node.daemon)
    assert node.shown("agg")[2] == ("Worker", [], "")
    node.registry.delete(quarantine_key(2), node.daemon)
    node.connections.append(SimpleNamespace(lease=1, why="stuck"))
    assert (node.look.models(), node.look.graph(graph).models) == ([], [])


def test_prefill_and_draining_workers_serve_no_model() -> None:
    for card, state in ((ModelCard("m", types=()), "ready"), (ModelCard("m"), "draining")):
        node = Node(agg())
        node.ask(1, "m")
        node.publish(2, card, state)
        assert node.shown("agg")[2] == ("Worker", [], "")


def test_adapters_are_models() -> None:
    node = Node(agg())
    node.publish(2, ModelCard("m", adapters=(Adapter("mine"),)))
    node.ask(1, "m", "mine")
    assert node.shown("agg")[2] == ("Worker", ["m", "mine"], "")


def test_workers_of_one_graph_are_asked_at_the_ingress_of_another() -> None:
    front = Runner("front", ("Frontend", 1, "Ready"), ("Processor", 1, "Ready"))
    workers = Runner("workers", ("Worker", 2, "Ready"))
    node = Node(front, workers)
    node.publish(2, ModelCard("m"))
    assert not node.look.graph(workers).ready
    node.ask(1, "m")
    assert [node.look.graph(one).models for one in (front, workers)] == [["m"], ["m"]]
    assert all(node.look.graph(one).ready for one in (front, workers))


def test_without_an_ingress_on_the_node_a_worker_counts_with_what_it_publishes() -> None:
    workers = Runner("workers", ("Worker", 2, "Ready"))
    node = Node(workers)
    state = node.look.graph(workers)
    assert (state.ready, state.models, state.silent) == (True, [], False), "it may serve no model at all"
    node.publish(2, ModelCard("m"))
    assert node.shown("workers") == [("Worker", ["m"], "")]
    assert (node.look.models(), node.look.graph(workers).ready) == (["m"], True)
