"""The JSON of answers, which daemons and commands of other releases read."""

from typing import Any

import msgspec
import pytest

from dynamod.control.answers import (
    ClusterStatus,
    Drained,
    GraphStatus,
    LogLines,
    Problem,
    Reloaded,
    Status,
    Stopped,
)
from dynamod.control.commands import known
from dynamod.extension.command import Command, NoArguments
from dynamod.message.rows import Row

ROW = {
    "doing": "idle",
    "slow": False,
    "progress_age": 0.5,
    "running": 0,
    "waiting": 0,
    "phases": {"load": 0.1},
    "graph": "agg",
    "component": "Worker",
    "process": "agg/Worker.0",
    "replica": 0,
    "state": "Ready",
    "pid": 7,
    "restarts": 0,
    "uptime": 1.5,
    "last_error": "",
    "gpus": ["0"],
    "session": "",
    "detail": "",
    "role": "decode",
    "models": ["sample"],
}
DAEMON = {"version": "1", "node": "n", "pid": 7, "uptime": 2.0}
WAYS = {"nats": "b:2", "tcp": "10.0.0.5"}
CLUSTER = {
    "etcd": "a:1",
    "store": "etcd at a:1",
    "connected": False,
    "error": "refused",
    "foreign_keys": 3,
    "namesakes": 0,
    **WAYS,
}
FAILED = {"name": "b", "ready": False, "error": "no such file"}
ATTACHED = {"name": "c", "ready": True, "models": ["m"], "session": "python x.py"}
STARTED = {
    "name": "agg",
    "target": "graphs.agg:Frontend",
    "config": "configs/agg.yaml",
    "ready": True,
    "models": [],
    "urls": ["http://localhost:1"],
    "components": ["Worker"],
    "session": "",
}
STATUS = {
    **DAEMON,
    "role": "daemon",
    "ephemeral": True,
    "socket": "d.sock",
    "cluster": CLUSTER,
    "problems": [{"found": "f", "mend": "m"}],
    "graphs": [STARTED, FAILED, ATTACHED],
    "models": ["m"],
    "components": 1,
    "ready": False,
    "gpus": {"agg/Worker.0": ["0"]},
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Row, ROW),
        (Problem, {"found": "f", "mend": "m"}),
        (ClusterStatus, CLUSTER),
        *((GraphStatus, value) for value in (STARTED, FAILED, ATTACHED)),
        (Status, STATUS),
        (Status, {**STATUS, "cluster": None}),
        (LogLines, {"lines": ["a"], "next": {"here": 4}}),
        (Drained, {"drained": "Worker"}),
        (Stopped, {"stopped": "agg"}),
        (Stopped, {"stopping": "dynamod"}),
        (Reloaded, {"graph": "agg", "changes": ["a: 1 -> 2"], "dry_run": False}),
        (Reloaded, {"reloaded": "dynamod"}),
    ],
)
def test_an_answer_has_these_fields(kind: type[msgspec.Struct], value: dict[str, Any]) -> None:
    assert msgspec.to_builtins(msgspec.convert(value, kind)) == value
    assert msgspec.convert({**value, "later": 1}, kind) == msgspec.convert(value, kind), "a newer daemon says more"


@pytest.mark.parametrize("command", list(known()), ids=lambda command: command.name)
def test_each_answer_of_an_older_daemon_can_be_read(command: Command[Any, Any]) -> None:
    schema = msgspec.json.schema(command.answer)
    required = {name for one in schema.get("$defs", {}).values() for name in one.get("required", ())}
    assert not required, "a field has a default"
    assert issubclass(command.arguments, msgspec.Struct)
    assert command.arguments is NoArguments or msgspec.structs.fields(command.arguments)
