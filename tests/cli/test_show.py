"""How answers look on a terminal."""

import random
from typing import Any

import msgspec

from dynamod.cli import show
from dynamod.cli.show import decision
from dynamod.message.discovery import Instance
from dynamod.message.rows import Row
from dynamod.router.router import Prompt, Router, RouterSettings


def shown(workers: int, width: int | None = None) -> str:
    router = Router("m", 16, RouterSettings("kv", busy_prefill=0), random.Random(0), lambda: 1.0, lambda: 1.5e9)
    live = tuple(Instance("n", "c", "e", number, {}) for number in range(workers))
    for number in range(20):
        router.state.active.start(number, number, (), 9, 0.0)
    made = router.decide(Prompt("r", 40), live)
    record = msgspec.to_builtins(made)
    for one in record["candidates"]:
        one["process"] = f"worker.{one['instance']}"
    return decision({**record, "overlap": 0, "regret": 0}, width)


def processes(rows: list[dict[str, Any]], width: int | None = None) -> str:
    return show.processes(msgspec.convert(rows, list[Row]), width)


def row(component: str, process: str, session: str = "", error: str = "") -> dict[str, Any]:
    facts = {"graph": process.partition("/")[0], "component": component, "process": process, "session": session}
    return {**facts, "state": "Ready", "pid": 17361, "uptime": 700.0, "restarts": 0, "last_error": error}


def test_rows_fit_a_narrow_terminal() -> None:
    rows = [
        row("Worker", "run-echo_core/Worker.0", "dynamo-run in=dyn://a.b.c out=echo_core pid 17360", "x" * 90),
        row("Frontend", "run-frontend/ingress.0", "dynamo-run in=http out=auto pid 17350"),
    ]
    whole = processes(rows)
    assert "out=auto pid 17350" in whole
    assert "x" * 80 in whole
    for width in (200, 140, 120, 100, 80):
        lines = processes(rows, width).split("\n")
        assert max(map(len, lines)) <= max(width, 97), width
        assert all(word in lines[3] for word in ("Worker", "run-echo_core/Worker.0", "Ready", "17361", "xxx"))
    quiet = [row("Worker", "agg/Worker.0"), row("Frontend", "agg/ingress.0")]
    assert processes(quiet, 100) == processes(quiet), "all fits"
    assert processes(quiet, 80).split("\n")[1].split()[1::2] == [
        "GRAPH",
        *["COMPONENT", "PROCESS", "STATE", "PID", "UPTIME", "RESTARTS"],
    ]


def test_roles_are_shown_where_workers_have_different_ones() -> None:
    rows = [row("Worker", "agg/Worker.0") | {"role": "aggregated"}, row("Frontend", "agg/ingress.0") | {"role": ""}]
    assert "ROLE" not in processes(rows)
    rows[0] |= {"role": "prefill", "detail": "becomes prefill"}
    assert "| Ready: becomes prefill | prefill |" in processes(rows)


def test_a_decision_among_thousands_shows_the_best_and_counts_the_others() -> None:
    lines = shown(2020).split("\n")
    assert "and 1,984 more" in lines
    assert sum("worker." in line for line in lines) == 16
    assert "left out: 0, busy: 9 prompt tokens to compute" in lines
    assert lines[-1] == "left out: 4 more"


def test_a_decision_fits_a_narrow_terminal() -> None:
    whole = shown(24).split("\n")
    assert "EVICTED x0.1" in whole[2]
    assert "FETCH" not in whole[2], "no worker has tiers"
    lines = shown(24, 90).split("\n")
    assert max(len(line) for line in lines if line.startswith(("+", "|"))) <= 90
    assert ("PREFILL" in lines[2], "EVICTED" in lines[2], "TOTAL" in lines[2]) == (True, False, True)
    assert [line.split("|")[1] for line in lines[4:8]] == [line.split("|")[1] for line in whole[4:8]]


def test_a_decision_among_few_shows_all() -> None:
    assert " more" not in shown(24).replace("left out: 4 more", "")


def test_a_decision_without_costs() -> None:
    router = Router("m", 16, RouterSettings("round-robin"), random.Random(0), lambda: 1.0, lambda: 1.5e9)
    made = router.decide(Prompt("r", 40), (Instance("n", "c", "e", 1, {}),))
    record = msgspec.to_builtins(made)
    record["candidates"][0]["process"] = "worker.1"
    assert "| worker.1* |" in decision({**record, "overlap": 0, "regret": 0})
