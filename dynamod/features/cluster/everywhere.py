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

from .commands import EVERYWHERE, EverywhereArguments, NodeAnswer, read

UNREACHED = "Unreached"
"""The state of the row that stands for a node without an answer."""


def answers(control: Control, command: str, **arguments: Any) -> list[NodeAnswer]:
    """What all nodes answer to a command with these arguments. Raises UserError."""
    return control.ask(EVERYWHERE, EverywhereArguments(command=command, arguments=arguments)).value


def ps(socket: str | None, output: Form) -> int:
    """Print the processes of all nodes; returns the exit code: 1 where a node does not answer."""
    known = [read(one, list[Row]) for one in answers(Control(socket), PS.name)]
    if output is Form.JSON:
        rows = [{"node": one.node, **row} for one, said in known for row in one.answer or _unreached_rows(one, said)]
        print(json.dumps(rows, indent=2))
    else:
        print(processes(rows_of(known), width_of_output()))
    return 1 if any(said is None for _, said in known) else 0


def rows_of(known: Sequence[tuple[NodeAnswer, list[Row] | None]]) -> list[Row]:
    """One row for each process of all nodes, under the name by which commands reach it: `two/agg/Worker.0`.

    A node without an answer has one row, with the reason.
    """
    rows = [(one, row) for one, said in known for row in (_unreached(one) if said is None else said)]
    return [msgspec.structs.replace(row, process=f"{one.node}/{row.process}".rstrip("/")) for one, row in rows]


def _unreached(one: NodeAnswer) -> list[Row]:
    return [Row(state=UNREACHED, last_error=one.why)]


def _unreached_rows(one: NodeAnswer, said: list[Row] | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = msgspec.to_builtins(_unreached(one) if said is None else said)
    return rows


def status(socket: str | None, output: Form) -> int:
    """Print the daemons of all nodes; returns the exit code: 1 where one has a problem or does not answer."""
    known = [read(one, Status) for one in answers(Control(socket), STATUS.name)]
    if output is Form.JSON:
        told = [{"node": one.node, "state": one.state, "why": one.why, "status": one.answer} for one, _ in known]
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(status_form(said) if said is not None else _no_status(one) for one, said in known))
    return 1 if any(said is None or said.problems for _, said in known) else 0


def _no_status(one: NodeAnswer) -> str:
    return f"node {one.node}: {one.state}\n  problem: {one.why}"
