"""Arguments of commands, from JSON and from URLs."""

from typing import Any

import pytest

from dynamod.control.table import DRAIN, LOGS, RESTART, SCALE, STOP
from dynamod.extension.command import Command, decode, from_query
from dynamod.features.cluster.commands import EVERYWHERE
from dynamod.features.planner.commands import PLAN
from dynamod.features.role_switch.commands import SWITCH
from dynamod.message.control import FINISH
from dynamod.message.errors import UserError

WHOLE, SECONDS = "give a number from 0 upwards", "give seconds"


@pytest.mark.parametrize(
    ("command", "given", "line"),
    [
        *((SCALE, {"replicas": value}, f"replicas is {value!r}; {WHOLE}") for value in (None, "2", 1.5, True, -1)),
        (SCALE, {}, f"replicas is None; {WHOLE}"),
        *((DRAIN, {"timeout": one}, f"timeout is {one!r}; {SECONDS}") for one in ("soon", 0, -1, True, None)),
        (DRAIN, {"timeout": float("nan")}, f"timeout is nan; {SECONDS}"),
        (STOP, {"timeout": 0}, f"timeout is 0; {SECONDS}"),
        (LOGS, {"lines": "many"}, f"lines is 'many'; {WHOLE}"),
        (LOGS, {"after": {"here": "x"}}, "after is {'here': 'x'}; give `next` of the answer before"),
        (SWITCH, {}, "role is None; one of: aggregated, prefill, decode"),
        (SWITCH, {"role": ["prefill"]}, "role is ['prefill']; one of: aggregated, prefill, decode"),
        (SWITCH, {"role": "decode", "expected_epoch": "1"}, f"expected_epoch is '1'; {WHOLE}"),
        (EVERYWHERE, {}, "command is None; give the name of a command, like ps"),
        (PLAN, {"action": "run"}, "action is 'run'; one of: pause, resume, set"),
        (PLAN, {"action": "set", "max": 0}, "max is 0; a whole number from 1 to 256"),
        (PLAN, {"action": "set", "most": 1}, "unknown argument most; plan takes action, component, min, max"),
    ],
)
def test_mistakes_name_the_argument_and_what_is_allowed(command: Command[Any, Any], given: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        decode(command, given)
    assert caught.value.line() == line


def test_what_is_left_out_has_its_default_and_what_is_unknown_is_ignored() -> None:
    found = decode(RESTART, {"component": "Worker", "colour": "red"})
    assert (found.component, found.graph, found.drain, found.timeout) == ("Worker", "", True, FINISH)
    assert decode(STOP, {"timeout": None, "graph": None}).timeout is None
    assert decode(LOGS, {"after": {"here": 3}}).after == {"here": 3}
    assert decode(DRAIN, {"timeout": 5}).timeout == 5.0


def test_a_url_has_json_and_texts() -> None:
    query = {"component": "5", "replicas": "2", "force": "1", "timeout": "1.5", "graph": "true"}
    found = decode(SCALE, from_query(SCALE, query))
    assert (found.component, found.graph, found.replicas, found.force, found.timeout) == ("5", "true", 2, True, 1.5)
    assert not decode(SCALE, from_query(SCALE, {"replicas": "0", "force": "false"})).force
    with pytest.raises(UserError, match="replicas is 'many'"):
        decode(SCALE, from_query(SCALE, {"replicas": "many"}))
