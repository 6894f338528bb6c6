"""`dynamo ps --all`, `dynamo status --all`: the answers of all nodes to a command, on a terminal or as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from dynamod.cli.client import Control
from dynamod.cli.options import Form
from dynamod.cli.show import processes, width_of_output
from dynamod.cli.show import status as status_form
from dynamod.control.answers import Status
from dynamod.control.table import PS, STATUS
from dynamod.message.rows import Row

from .commands import ANSWERS, EVERYWHERE, EverywhereArguments, NodeAnswer

UNREACHED = "Unreached"
"""The state of the row that stands for a node without an answer."""


def answers(control: Control, command: str) -> list[NodeAnswer]:
    """What all nodes answer to a command. Raises UserError."""
    return control.ask(EVERYWHERE, EverywhereArguments(command=command)).value


def ps(socket: str | None, output: Form) -> int:
    """Print the processes of all nodes; returns the exit code: 1 where a node does not answer."""
    found = answers(Control(socket), PS.name)
    if output is Form.JSON:
        rows = [{"node": one.node, **row} for one in found for row in _rows_as_json(one)]
        print(json.dumps(rows, indent=2))
    else:
        print(processes(rows_of(found), width_of_output()))
    return _code(found)


def rows_of(found: Sequence[NodeAnswer]) -> list[Row]:
    """One row for each process of all nodes, under the name by which commands reach it: `two/agg/Worker.0`."""
    rows = [(one.node, row) for one in found for row in msgspec.convert(_rows_as_json(one), list[Row])]
    return [msgspec.structs.replace(row, process=f"{node}/{row.process}".rstrip("/")) for node, row in rows]


def _rows_as_json(one: NodeAnswer) -> list[dict[str, Any]]:
    if one.state == ANSWERS:
        rows: list[dict[str, Any]] = one.answer
        return rows
    row: dict[str, Any] = msgspec.to_builtins(Row(state=UNREACHED, last_error=one.why))
    return [row]


def status(socket: str | None, output: Form) -> int:
    """Print the daemons of all nodes; returns the exit code: 1 where one has a problem or does not answer."""
    found = answers(Control(socket), STATUS.name)
    known = [(one, msgspec.convert(one.answer, Status) if one.state == ANSWERS else None) for one in found]
    if output is Form.JSON:
        told = [{"node": one.node, "state": one.state, "why": one.why, "status": one.answer} for one in found]
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(status_form(said) if said is not None else _unreached(one) for one, said in known))
    return 1 if any(said is None or said.problems for _, said in known) else 0


def _unreached(one: NodeAnswer) -> str:
    return f"node {one.node}: {one.state}\n  problem: {one.why}"


def _code(found: Sequence[NodeAnswer]) -> int:
    return 1 if any(one.state != ANSWERS for one in found) else 0
