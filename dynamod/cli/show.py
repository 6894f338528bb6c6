"""How the answers of the control socket look on a terminal."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from dynamod.control.answers import Status
from dynamod.extension.command import R
from dynamod.extension.installed import enabled
from dynamod.message.rows import STATE_SAYS_IT, Row

from .client import ControlAnswer
from .tables import duration, table

SHOWN_MODELS = 3
"""Models that a line names; JSON has all."""


def show(answer: ControlAnswer[R], form: Callable[[R, int | None], str], output: str) -> None:
    """Print an answer as `json`, or as `text`: the form at the width of the terminal, None where none is known."""
    print(json.dumps(answer.raw, indent=2) if output == "json" else form(answer.value, width_of_output()))


def width_of_output() -> int | None:
    """Characters of a line of the terminal; None where none is known."""
    chosen = os.environ.get("COLUMNS", "").isdecimal()  # a pipe has no width of its own
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or chosen else None


def left(rows: list[Row], width: int | None) -> str:
    """The processes of a component that has changed."""
    return processes(rows, width) if rows else "no process is left"


def words(value: Struct, _width: int | None) -> str:
    """An answer of a few words: `stopped agg`."""
    return ", ".join(f"{key} {text}" for key, text in msgspec.to_builtins(value).items())


def decisions(records: list[dict[str, Any]], width: int | None) -> str:
    """`explain`: the decisions for a request, and where its time went."""
    shown = [decision(record, width) for record in records]
    return "\n\n".join([*shown, *(times(record["times"]) for record in records if record.get("times"))])


def times(told: Mapping[str, Any]) -> str:
    """Where the time of a request went: a line for each phase that took some."""
    total, phases = told["total_ms"], told["phases_ms"]
    rows = [[name, f"{ms:.3f}", f"{100 * ms / (total or 1):.1f}%"] for name, ms in phases.items() if ms]
    head = "so far: it has not ended" if told["open"] else "from its first byte here to the last byte of its answer"
    return f"{table(['PHASE', 'MS', 'SHARE'], [*rows, ['total', f'{total:.3f}', '']])}\n{head}"


def decision(record: dict[str, Any], width: int | None = None) -> str:
    """One routing decision: a table of candidates, the weight of each term in its head, and what decided.

    A table that is wider than `width` does without the terms that are 0 for all, then without the weights.
    """
    weights: dict[str, float] = record["weights"] or {}  # none where the policy has no costs
    used = [name for name in weights if any(f"{one['terms'][name]:.2f}" != "0.00" for one in record["candidates"])]
    forms = [
        {name: f"{name.upper()} x{weight:g}" for name, weight in weights.items() if _says(name, record["candidates"])},
        {name: f"{name.upper()} x{weights[name]:g}" for name in used},
        {name: name.upper() for name in used},
    ]
    tables = [_candidates(record, form) for form in forms]
    blocks = record["tokens"] // record["block_size"]
    pool = f", {record['pool']} workers" if record.get("pool") else ""
    lines = [
        f"request {record['request']} for {record['model']}: {record['tokens']} tokens, {blocks} full blocks of "
        f"{record['block_size']}; mode {record['mode']}{pool}",
        next((text for text in tables if _fits(text, width)), tables[-1]),
        *([f"and {record['left_out']:,} more"] if record.get("left_out") else []),
        f"* chosen: {record['rule']}; {record['regret']} blocks of locality given away",
    ]
    if weights and record["overlap_weight"] != 1:
        lines.append(f"prompt terms weighed by {record['overlap_weight']:g} (kv_overlap_score_weight)")
    lines += [f"left out: {number:x}, {why}" for number, why in record["excluded"]]
    if record.get("more_excluded"):
        lines.append(f"left out: {record['more_excluded']:,} more")
    notes = {name: make for one in enabled() for name, make in one.notes.items()}
    lines += [make()(record[name]) for name, make in notes.items() if record.get(name)]
    if record["shadow_mode"]:
        same = "the same" if record["shadow"] == record["chosen"] else f"{record['shadow']:x}"
        lines.append(f"{record['shadow_mode']} would have chosen {same}")
    return "\n".join(lines)


def _says(name: str, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a term of the cost says something of these candidates."""
    from dynamod.router.cost import TERMS

    needs = TERMS[name].needs if name in TERMS else ""  # the daemon may be of another version
    return not needs or any(one.get(needs) for one in candidates)


def _candidates(record: dict[str, Any], terms: Mapping[str, str]) -> str:
    """`terms`: the shown terms, with their heads."""
    total = bool(record["weights"])
    rows = []
    for one in sorted(record["candidates"], key=lambda one: one["total"]):
        mark = "*" if one["instance"] == record["chosen"] else ""
        cells = [f"{one['process'] or format(one['instance'], 'x')}{mark}", str(one["overlap"]), str(one["requests"])]
        cells += [f"{one['terms'][name]:.2f}" for name in terms]
        rows.append([*cells, *([f"{one['total']:.2f}"] if total else [])])
    return table(["WORKER", "OVERLAP", "REQUESTS", *terms.values(), *(["TOTAL"] if total else [])], rows)


def _fits(text: str, width: int | None) -> bool:
    return width is None or text.index("\n") <= width


def _doing(rows: list[Row]) -> list[str]:
    """What each process does, where that is more than its state; no column where none does more."""
    shown = [row.doing if row.state == "Ready" else "" for row in rows]
    return ["" if text in STATE_SAYS_IT else text for text in shown] if {*shown}.difference(STATE_SAYS_IT) else []


def _models(rows: list[Row]) -> list[str]:
    """The models that can be asked through each process; no column where there are none."""
    shown = [_some(row.models) for row in rows]
    return shown if any(shown) else []


def processes(rows: list[Row], width: int | None = None) -> str:
    """`ps`: one line per component and replica, with the columns that fit `width`."""
    if not rows:
        return "nothing is running"
    several = len({row.session for row in rows}) > 1
    sessions = [row.session if several else "" for row in rows]
    roles = [row.role for row in rows]
    columns = {
        "GRAPH": [row.graph for row in rows],
        "COMPONENT": [row.component for row in rows],
        "PROCESS": _beside(rows, sessions),
        "STATE": [f"{row.state}: {row.detail}" if row.detail else row.state for row in rows],
        "DOING": _doing(rows),
        "MODELS": _models(rows),
        "ROLE": roles if {*roles} - {"", "aggregated"} else [],
        "PID": [str(row.pid or "-") for row in rows],
        "UPTIME": [duration(row.uptime) if row.uptime is not None else "-" for row in rows],
        "RESTARTS": [str(row.restarts) for row in rows],
        "LAST ERROR": [row.last_error[:80] for row in rows],
    }
    pids = [f"pid {session.rpartition(' ')[2]}" if session else "" for session in sessions]
    shorter: list[dict[str, list[str]]] = [  # one after the other, until it fits; an empty column goes
        {},
        {"PROCESS": _beside(rows, pids)},
        {} if any(columns["LAST ERROR"]) else {"LAST ERROR": []},
        {"GRAPH": []},
        {"LAST ERROR": [row.last_error[:24] for row in rows] if any(columns["LAST ERROR"]) else []},
        {"UPTIME": []},
        {"MODELS": []},
        {"DOING": []},
        {"PROCESS": [row.process for row in rows]},
    ]
    text = ""
    for change in shorter:
        columns |= change
        kept = {title: cells for title, cells in columns.items() if cells}
        text = table(list(kept), list(zip(*kept.values(), strict=True)))
        if _fits(text, width):
            break
    return text


def _beside(rows: list[Row], sessions: list[str]) -> list[str]:
    """Processes with the command that each ends with, where that is told."""
    return [
        f"{row.process} ({session})" if session else row.process for row, session in zip(rows, sessions, strict=True)
    ]


def status(value: Status, _width: int | None = None) -> str:
    """`status`: the daemon, then a line per graph."""
    where = f"{value.node}, up {duration(value.uptime)}, socket {value.socket}"
    lines = [f"dynamod {value.version} pid {value.pid} on {where}"]
    if (cluster := value.cluster) is not None:
        etcd = f"etcd {cluster.etcd}" if cluster.etcd else cluster.store or "no etcd"
        state = "" if cluster.connected or not (cluster.etcd or cluster.store) else f" (not there: {cluster.error})"
        ways = [f"NATS {cluster.nats}" if cluster.nats else "", f"TCP at {cluster.tcp}" if cluster.tcp else ""]
        lines.append(f"  cluster: {etcd}{state}, {' and '.join(filter(None, ways)) or 'no NATS'}")
    for graph in value.graphs:
        where = " ".join(graph.urls or ())
        session = f"({graph.session})" if graph.session else ""
        state = f"failed: {graph.error}" if graph.error else "ready" if graph.ready else "not ready"
        told = graph.models is not UNSET and not graph.error  # an older daemon does not say them
        serves = f"serves {_some(graph.models or ()) or 'no model'}" if told else ""
        lines.append(" ".join(filter(None, [f"  {graph.name}: {state}", where, serves, session])))
    if not value.graphs:
        lines.append("  no graphs; start one with dynamo serve --detach")
    for problem in value.problems:
        lines += [f"  problem: {problem.found}", f"           {problem.mend}"]
    return "\n".join(lines)


def _some(models: Sequence[str]) -> str:
    """The first models of many, and how many more there are."""
    more = f" and {len(models) - SHOWN_MODELS} more" if len(models) > SHOWN_MODELS else ""
    return ", ".join(models[:SHOWN_MODELS]) + more


def actors(entries: list[dict[str, Any]], _width: int | None = None) -> str:
    """`inspect`: a block per actor."""
    blocks = []
    for entry in entries:
        if "error" in entry:
            blocks.append(f"{entry['process']}: {entry['error']}")
            continue
        mailbox = entry["mailbox"]
        current = f"{entry['current']} for {entry['current_age']:.3f} s" if entry["current"] else "idle"
        block = [
            f"{entry['process']} {entry['path'] or '/'} ({entry['kind']}, incarnation {entry['incarnation']})",
            f"  {entry['state']}, {current}; mailbox {mailbox['depth']}/{mailbox['capacity']}, "
            f"control {mailbox['control_depth']}, waiting senders {mailbox['waiting_senders']}; "
            f"handled {entry['handled']}, abandoned {entry['abandoned']}",
        ]
        block += [f"  {key}: {json.dumps(text)}" for key, text in entry["details"].items()]
        for task in entry["tasks"]:
            block.append(f"  task {task['name']}")
            block += [f"    {line}" for line in task["stack"]]
        blocks.append("\n".join(block))
    return "\n".join(blocks)
