"""Which processes a reload replaces."""

from typing import Any

from dynamod.cli.client import ControlAnswer
from dynamod.cli.reload import processes
from dynamod.control.table import PS
from dynamod.message.errors import UserError


class FakeControl:
    def ask(self, command: Any, _arguments: Any) -> Any:
        assert command is PS
        return ControlAnswer([{"graph": "a", "pid": 5}, {"graph": "a", "pid": 6}, {"graph": "b", "pid": 7}], PS)


def test_the_processes_of_the_graph_that_is_replaced() -> None:
    control: Any = FakeControl()
    assert processes(control, lambda: "a") == [5, 6]
    assert processes(control, lambda: "c") == []

    def nobody() -> str:
        raise UserError("no graph 'x' runs")

    assert processes(control, nobody) == []
