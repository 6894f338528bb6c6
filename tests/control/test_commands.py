"""How commands find what a name means: one graph, none, or several."""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynamod.actor import System
from dynamod.control.commands import Commands
from dynamod.control.names import UnknownName
from dynamod.daemon.attached import AttachedGraph
from dynamod.daemon.graphs import Graphs
from dynamod.daemon.link import Owner
from dynamod.daemon.names import graph_name
from dynamod.daemon.process import ProcessFacts
from dynamod.daemon.reported import Reported
from dynamod.discovery.memory import MemoryRegistry, RegistryStatistics
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError
from dynamod.message.node import Hello, State
from dynamod.observe.logstore import LogStatistics


@dataclass
class Runner:
    """A graph with these components, each in a process of its own."""

    name: str
    names: tuple[str, ...]
    done: list[Any] = field(default_factory=list)
    by_hand: Counter[str] = field(default_factory=Counter)
    groups: dict[str, Any] = field(default_factory=dict)
    graph: Any = field(default_factory=lambda: SimpleNamespace(services={}))

    def has(self, component: str) -> bool:
        return component.removeprefix(f"{self.name}/").split(".")[0] in self.names

    def rows(self) -> list[Any]:
        return [Row(self.name, name, f"{self.name}/{name}.0") for name in self.names]

    async def restart(self, component: str, *, drain: bool, timeout: float) -> None:
        self.done.append(("restart", component, drain))

    async def scale(self, component: str, replicas: int, timeout: float) -> None:
        self.done.append(("scale", component, replicas))

    async def switch(self, component: str, role: str, timeout: float, epoch: int | None) -> None:
        self.done.append(("switch", component, role, timeout, epoch))

    async def drain(self, component: str, timeout: float) -> None:
        self.done.append(("drain", component, timeout))


@dataclass
class Row:
    graph: str
    component: str
    process: str
    state: str = "Ready"
    replica: int = 0
    pid: int = 0


def node(*runners: Runner) -> tuple[Commands, Any]:
    fake: Any = SimpleNamespace(ended=0)
    fake.graphs = Graphs(fake)
    fake.graphs.running = {runner.name: runner for runner in runners}
    fake.registry = MemoryRegistry(random.Random(1))
    fake.link = SimpleNamespace(leases=dict, connections=())
    fake.life = SimpleNamespace(born=0.0, stop=lambda _grace: setattr(fake, "ended", fake.ended + 1))
    return Commands(fake), fake


AGG = ("Frontend", "Worker")


@pytest.mark.parametrize("name", ["Worker", "agg/Worker", "Worker.0", "agg/Worker.0"])
async def test_names_of_our_own(name: str) -> None:
    agg = Runner("agg", AGG)
    commands, _ = node(agg, Runner("run-echo_core", ("Engine",)))
    rows = await commands.call("restart", {"component": name})
    assert agg.done == [("restart", name.removeprefix("agg/"), True)]
    assert [row["component"] for row in rows] == ["Worker"]


async def test_a_stop_without_a_name_ends_the_daemon() -> None:
    commands, fake = node(Runner("agg", AGG))
    assert await commands.call("stop", {}) == {"stopping": "dynamod"}
    assert fake.ended == 1


async def test_a_python_file_is_not_restarted_scaled_or_changed() -> None:
    reported = Reported(lambda: 0.0)
    reported.take(State("backend", "Ready"))
    connection = SimpleNamespace(
        hello=Hello("mine", 7, kind="file"),
        why="",
        pid=7,
        heartbeats=None,
        doing="",
        owner=Owner(),
        reported=reported,
        on_close=lambda _callback: None,
    )
    commands, fake = node(Runner("agg", AGG))
    file = AttachedGraph(connection, fake.graphs.names())  # type: ignore[arg-type]
    fake.graphs.files[file.name] = file
    (row,) = file.rows()
    assert (row.process, row.component, row.state) == ("python/mine.0", "backend", "Ready")
    for command, arguments in (("restart", {}), ("scale", {"replicas": 2})):
        with pytest.raises(UserError, match="is a Python process that the node did not start"):
            await commands.call(command, {"component": "backend", **arguments})
    with pytest.raises(UserError, match="did not start"):
        await commands.call("reload", {"graph": "python", "new": {}})


async def test_of_two_terminals_each_can_be_named() -> None:
    one, two = Runner("run", ("Worker",)), Runner("run-2", ("Worker",))
    commands, _ = node(Runner("agg", AGG), one, two)
    for name in ("Worker", "Worker.0"):
        with pytest.raises(UserError, match="several graphs have a component") as several:
            await commands.call("restart", {"component": name})
        assert f"agg/{name}, run/{name}, run-2/{name}" in several.value.hint
    await commands.call("restart", {"component": "run-2/Worker"})
    await commands.call("drain", {"component": "run/Worker.0"})
    assert (one.done, two.done) == ([("drain", "Worker.0", 600.0)], [("restart", "Worker", True)])


async def test_names_that_mean_nothing_or_too_much() -> None:
    one, two = Runner("one", AGG), Runner("two", AGG)
    commands, _ = node(one, two)
    with pytest.raises(UserError, match="several graphs have a component 'Worker'") as several:
        await commands.call("restart", {"component": "Worker"})
    assert "one/Worker, two/Worker" in several.value.hint
    await commands.call("restart", {"component": "two/Worker"})
    await commands.call("restart", {"component": "Worker", "graph": "one", "drain": False})
    assert (one.done, two.done) == ([("restart", "Worker", False)], [("restart", "Worker", True)])
    with pytest.raises(UnknownName, match="no component 'Wroker'") as unknown:
        await commands.call("drain", {"component": "Wroker"})
    assert unknown.value.hint == "known: Frontend, Worker"
    with pytest.raises(UnknownName, match="three/Worker"):
        await commands.call("drain", {"component": "three/Worker"})
    with pytest.raises(UnknownName, match="no graph 'three'") as graph:
        await commands.call("stop", {"graph": "three"})
    assert graph.value.hint == "known: one, two"
    with pytest.raises(UserError, match="no component named"):
        await commands.call("restart", {})
    with pytest.raises(UserError, match="unknown command 'fly'"):
        await commands.call("fly", {})
    for replicas in (None, "2", 1.5, True):
        with pytest.raises(UserError, match="replicas is"):
            await commands.call("scale", {"component": "one/Worker", "replicas": replicas})
    for timeout in ("soon", 0, -1, True):
        with pytest.raises(UserError, match="timeout is"):
            await commands.call("drain", {"component": "one/Worker", "timeout": timeout})


class Process:
    """A process that answers so, or not at all."""

    def __init__(self, name: str, pid: int = 0, **told: Any) -> None:
        self.name, self.pid, self.told = name, pid, told

    async def ask(self, question: str, _arguments: Any = None, *, timeout: float) -> Any:
        assert timeout > 0
        if question not in self.told:
            raise TimeoutError
        return self.told[question]

    def facts(self) -> ProcessFacts:
        return ProcessFacts(self.name, 7, {}, "", None, 1.0)


def asked(system: Any, *processes: Process) -> Commands:
    agg = SimpleNamespace(name="agg", processes=lambda: processes, rows=list)
    commands, fake = node(agg)  # type: ignore[arg-type]
    fake.__dict__.update(name="here", system=system)
    fake.registry = SimpleNamespace(statistics=lambda: RegistryStatistics(1, 2, 3, 4))
    fake.logs = SimpleNamespace(store=SimpleNamespace(statistics=lambda: LogStatistics(10, False)))
    fake.link = SimpleNamespace(leases=dict)
    return commands


async def test_metrics_of_all_processes_are_one_text() -> None:
    text = (
        '# HELP dynamod_open_total Open\\\\ed\n# TYPE dynamod_open_total counter\ndynamod_open_total{process="%s"} %d\n'
    )
    async with System() as system:
        answering = [Process(name, metrics=text % (name, number)) for number, name in enumerate(("a", "b/c"))]
        found = await asked(system, *answering, Process("quiet")).call("metrics", {})
        families = {family.name: family for family in text_string_to_metric_families(found)}
    assert found.count("# TYPE dynamod_open_total counter") == 1
    assert families["dynamod_open"].documentation == "Open\\ed"
    answers = {one.labels["process"]: one.value for one in families["dynamod_process_answers"].samples}
    assert answers == {"a": 1, "b/c": 1, "quiet": 0}
    (revoked,) = families["dynamod_registry_revoked"].samples
    assert (revoked.labels, revoked.value) == ({"process": "dynamod"}, 4)
    assert families["dynamod_logs_free_bytes"].samples[0].value == 10
    assert {one.labels["process"] for one in families["dynamod_actor_tasks"].samples} == {"dynamod"}


async def test_who_does_not_answer_is_a_finding() -> None:
    async with System() as system:
        facts = await asked(system, Process("a", inspect=[{"path": "/W"}]), Process("quiet")).call("inspect", {})
    assert facts[-2:] == [
        {"process": "a", "path": "/W"},
        {"process": "quiet", "path": "", "error": "does not answer: TimeoutError"},
    ]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("graphs.agg:Frontend", "agg"),
        ("hello:Frontend", "hello"),
        ("path/to/file.py:Frontend", "file"),
        ("/path/to/my graph.v2.yaml", "my-graph-v2"),
        ("graph.yml", "graph"),
        ("", "Root"),
    ],
)
def test_the_default_name_of_a_graph(target: str, name: str) -> None:
    assert graph_name(Graph("Root", {}, "dynamo", target=target)) == name
