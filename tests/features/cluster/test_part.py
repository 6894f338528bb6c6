"""What the daemon does with commands: of another node, for another node, and for all nodes."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dynamod.control.names import UnknownName
from dynamod.control.refusals import Refusal, RefusedElsewhere, refusal_of
from dynamod.control.table import DRAIN, EXPLAIN, INSPECT, LOGS, PS, RELOAD, RESTART, SCALE, STOP
from dynamod.daemon.cluster import Cluster
from dynamod.daemon.names import machine
from dynamod.extension.command import Command, CommandCall
from dynamod.features.cluster.asking import Heard, Unreached
from dynamod.features.cluster.commands import EVERYWHERE
from dynamod.features.cluster.control import row_of
from dynamod.features.cluster.daemon import ClusterPart
from dynamod.features.cluster.messages import Greeting, Outcome
from dynamod.features.cluster.nodes import KnownNode
from dynamod.features.cluster.settings import VARIABLE, remote_commands
from dynamod.features.role_switch.commands import SWITCH
from dynamod.message.discovery import NodeRecord
from dynamod.message.errors import UserError

from .conftest import record


class Part(ClusterPart):
    """Of node one, where graph agg runs. Nodes answer as a test wants."""

    def __init__(self) -> None:
        graphs = SimpleNamespace(names=lambda: {"agg"}, failed={})
        cluster = SimpleNamespace(record=NodeRecord("0.2.0", 2, 1), settings=Cluster())
        place = SimpleNamespace(socket="/d.sock")
        super().__init__(cast("Any", SimpleNamespace(name="one", graphs=graphs, cluster=cluster, place=place)))
        self.asked: list[Any] = []
        self.outcomes: dict[str, Outcome | Unreached] = {}
        for name in ("two", "three"):
            self.known.changed(f"v1/nodes/{name}/m/7", msgspec.json.encode(record()))

    async def ask(self, one: KnownNode, command: str, arguments: Mapping[str, Any], *, outcome_s: float = 3.0) -> Heard:
        self.asked.append((one.name, command, dict(arguments), outcome_s))
        outcome = self.outcomes.get(one.name, Outcome(answer="theirs"))
        if isinstance(outcome, Unreached):
            raise outcome
        return Heard(Greeting(node=one.name, version="9.0.0", protocol=9, clock=1.0), outcome, 2.5, 0.001)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.delenv(VARIABLE, raising=False)
    return Part()


async def here(call: CommandCall) -> Any:
    return call.name or "ours"


def call(command: Command[Any, Any], name: str = "", sender: str = "", **more: Any) -> CommandCall:
    return CommandCall(command, {**({command.subject: name} if name else {}), **more}, sender)


async def test_names_without_a_node_stay_here(part: Part) -> None:
    assert await part.command(call(PS), here) == "ours"
    assert await part.command(call(LOGS, "agg/Worker"), here) == "agg/Worker"
    assert await part.command(call(LOGS, "four/Worker"), here) == "four/Worker"
    assert await part.command(call(LOGS, "one/agg/Worker"), here) == "agg/Worker"
    assert part.asked == []


async def test_an_unknown_name_with_a_slash_is_told_the_nodes(part: Part) -> None:
    async def unknown(call: CommandCall) -> Any:
        raise UnknownName(f"no component '{call.name}'", "known: Worker")

    with pytest.raises(UnknownName, match="no component 'tow/Worker'") as refused:
        await part.command(call(LOGS, "tow/Worker"), unknown)
    assert refused.value.hint == "known: Worker; other nodes: three, two"
    with pytest.raises(UnknownName) as refused:
        await part.command(call(LOGS, "Wroker"), unknown)
    assert refused.value.hint == "known: Worker"


async def test_a_name_with_a_node_goes_there(part: Part) -> None:
    assert await part.command(call(LOGS, "two/agg/Worker", lines=5), here) == "theirs"
    assert await part.command(call(SCALE, "two/Worker", replicas=2, timeout=7), here) == "theirs"
    assert await part.command(call(EXPLAIN, "two/r1"), here) == "theirs"
    assert await part.command(call(STOP, "two/"), here) == "theirs"
    for command in (RESTART, DRAIN, INSPECT):
        assert await part.command(call(command, "two/Worker.0"), here) == "theirs"
    assert await part.command(call(SWITCH, "two/Worker.0", role="prefill"), here) == "theirs"
    assert [one[:3] for one in part.asked] == [
        ("two", "logs", {"component": "agg/Worker", "lines": 5}),
        ("two", "scale", {"component": "Worker", "replicas": 2, "timeout": 7}),
        ("two", "explain", {"request": "r1"}),
        ("two", "stop", {"graph": ""}),
        ("two", "restart", {"component": "Worker.0"}),
        ("two", "drain", {"component": "Worker.0"}),
        ("two", "inspect", {"actor": "Worker.0"}),
        ("two", "switch", {"component": "Worker.0", "role": "prefill"}),
    ]
    logs, scale, *_ = [one[3] for one in part.asked]
    assert logs < 60 < scale, "a change waits as long as open streams may finish"


async def test_wrong_arguments_are_refused_here(part: Part) -> None:
    with pytest.raises(UserError, match="replicas is 'many'"):
        await part.command(call(SCALE, "two/Worker", replicas="many"), here)
    assert part.asked == []


async def test_what_another_node_refuses(part: Part) -> None:
    part.outcomes["two"] = Outcome(error=Refusal(409, "model m will not be served", "use --force", "last_worker"))
    with pytest.raises(RefusedElsewhere) as refused:
        await part.command(call(SCALE, "two/Worker", replicas=0), here)
    known = Refusal(409, "node two: model m will not be served", "use --force", "last_worker")
    assert refusal_of(refused.value) == known
    part.outcomes["two"] = Outcome(error=Refusal(404, "unknown command 'logs'", "see /v1", "unknown_command"))
    with pytest.raises(RefusedElsewhere, match="node two: unknown command 'logs'") as refused:
        await part.command(call(LOGS, "two/Worker"), here)
    assert refused.value.hint.startswith("two runs dynamod 9.0.0, this node ")
    part.outcomes["two"] = Unreached("does not answer within 0.8 s")
    with pytest.raises(RefusedElsewhere, match="node two: does not answer") as refused:
        await part.command(call(LOGS, "two/Worker"), here)
    assert refused.value.refusal.status == 504
    part.known.changed("v1/nodes/two/other/8", msgspec.json.encode(record()))
    with pytest.raises(UserError, match="several machines are called two"):
        await part.command(call(LOGS, "two/Worker"), here)


@pytest.mark.parametrize(
    ("mode", "taken"),
    [("", {"ps"}), ("read", {"ps"}), ("all", {"ps", "scale", "stop"}), ("off", set[str]())],
)
async def test_commands_of_other_nodes(monkeypatch: pytest.MonkeyPatch, mode: str, taken: set[str]) -> None:
    monkeypatch.setenv(VARIABLE, mode)
    part, refused = Part(), dict[str, str]()
    for command in (PS, SCALE, STOP, RELOAD, EVERYWHERE):
        try:
            await part.command(call(command, "two/Worker", sender="two"), here)
        except UserError as error:
            refused[command.name] = error.line()
    assert part.asked == [], "what another node has sent is never sent on"
    assert {"ps", "scale", "stop", "reload", "everywhere"} - refused.keys() == taken
    assert "never taken from another node" in refused["reload"]
    assert "never taken from another node" in refused["everywhere"]
    assert all(VARIABLE in line for name, line in refused.items() if name not in ("reload", "everywhere"))


def test_a_wrong_setting_is_one_line() -> None:
    with pytest.raises(UserError, match="DYNAMOD_REMOTE_COMMANDS is 'write'"):
        remote_commands({VARIABLE: "write"})
    assert remote_commands({}) == "read"


class Ours:
    """Commands of node one."""

    def __init__(self, command: Command[Any, Any]) -> None:
        self.command = command

    def find(self, _name: str) -> Any:
        return self

    async def call(self, command: str, arguments: Mapping[str, Any], sender: str) -> Any:
        return "ours"


async def test_all_nodes(part: Part) -> None:
    part.__dict__["commands"] = Ours(PS)
    part.outcomes["two"] = Unreached("does not answer within 0.8 s")
    part.known.changed("v1/nodes/old/m/7", b"")
    part.outcomes["old"] = Unreached("takes no commands")
    rows = await part.everywhere("ps")
    assert [(row.node, row.state, row.answer, row.why) for row in rows] == [
        ("one", "answers", "ours", ""),
        ("old", "no commands", None, "takes no commands"),
        ("three", "answers", "theirs", ""),
        ("two", "no answer", None, "does not answer within 0.8 s"),
    ]
    own, _, three, two = rows
    assert (own.own, own.clock_ms, own.machine, three.own) == (True, 0.0, machine(), False)
    assert (three.version, three.protocol, three.clock_ms, three.round_trip_ms) == ("9.0.0", 9, 2.5, 1.0)
    assert (two.version, two.protocol, two.clock_ms, two.address) == ("0.2.0", 2, None, "subject")
    part.outcomes["three"] = Outcome(error=Refusal(400, "three takes no commands"))
    assert (await part.everywhere("ps"))[2].state == "refuses"
    part.__dict__["commands"] = Ours(SCALE)
    with pytest.raises(UserError, match="scale changes something"):
        await part.everywhere("scale")


async def test_an_answer_of_another_form_is_a_row(part: Part) -> None:
    part.__dict__["commands"] = Ours(PS)
    rows = [row_of(one) for one in await part.everywhere("ps")]
    assert {row.state for row in rows} == {"no answer"}
    assert "its answer is of another release" in rows[0].why
