"""Two looks at a node become rows; rows become columns that fit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.top_rows import Look, ProcessRow, Top, quantile, top
from dynamod.cli.top_table import BASE, INGRESS, WORKER, age, both, number, sections, share, size, state, widths
from dynamod.observe.metrics import Buckets, labelled, merge, render


class Door(msgspec.Struct, frozen=True):
    """A front door."""

    requests_total: int
    inflight_requests: int
    queued_requests: int
    time_to_first_token_seconds: Buckets
    inter_token_latency_seconds: Buckets


class Gone(msgspec.Struct, frozen=True):
    """Clients."""

    disconnected_clients: int = 0


class Engine(msgspec.Struct, frozen=True):
    """An engine."""

    running: int
    waiting: int
    tokens_total: int
    total_blocks: int = 0
    active_blocks: int = 0
    hit_rate: float = 0.0


class TransportSelector(msgspec.Struct, frozen=True):
    """A mailbox."""

    mailbox_depth: int


class Life(msgspec.Struct, frozen=True):
    """A process."""

    uptime: float


def buckets(*counts: int) -> Buckets:
    return Buckets((0.01, 0.02, 0.05)[: len(counts) - 1], counts, 0.0)


def ingress(name: str, requests: int, ttft: Buckets, itl: Buckets, *, prefix: str = "dynamo_frontend") -> str:
    rows = [({"model": "a"}, Door(requests, 3, 1, ttft, itl)), ({"model": "b"}, Door(10, 1, 0, buckets(0), buckets(0)))]
    own = render(prefix, [*rows, ({}, Gone())])
    mail = [
        ({"actor": "/Processor"}, TransportSelector(4)),
        ({"actor": "/Frontend"}, TransportSelector(1)),
        ({"actor": "/registry"}, TransportSelector(9)),
    ]
    return labelled(own + render("dynamod_actor", mail), "process", name)


def worker(name: str, tokens: int) -> str:
    text = render("dynamod_worker_engine", [({"actor": "/Worker"}, Engine(2, 1, tokens, 4096, 812, 0.64))])
    return labelled(text + render("dynamod_actor", [({"actor": "/Worker"}, TransportSelector(0))]), "process", name)


def row(process: str, component: str, pid: int, state: str = "Ready", **more: object) -> dict[str, object]:
    fixed = {"graph": "agg", "component": component, "process": process, "state": state, "pid": pid}
    return {**fixed, "restarts": 0, "uptime": 5.0, "last_error": "", "session": "", **more}


def look(at: float, rows: list[dict[str, object]], *texts: str, cpu: float = 0.0, holder: int = 1) -> Look:
    pids = {str(one["pid"]): {"cpu": cpu, "rss": 87 << 20} for one in rows}
    return Look(
        {
            "version": "0",
            "node": "here",
            "pid": holder,
            "uptime": 9.0,
            "at": at,
            "rows": rows,
            "instances": {pid: f"{int(pid):x}" for pid in pids},
            "vitals": pids,
            "metrics": merge(texts),
        }
    )


ROWS = [row("agg/Worker.0", "Worker", 30), row("agg/ingress.0", "Processor", 31), row("agg/ingress.0", "Frontend", 31)]


def looks() -> tuple[Look, Look]:
    before = look(
        100.0, ROWS, worker("agg/Worker.0", 1000), ingress("agg/ingress.0", 7, buckets(7, 0, 0, 0), buckets(9, 0, 0, 0))
    )
    now = look(
        102.0,
        ROWS,
        worker("agg/Worker.0", 1500),
        ingress("agg/ingress.0", 107, buckets(7, 100, 0, 0), buckets(9, 0, 50, 50)),
        labelled(render("dynamod_process", [({}, Life(77.5))]), "process", "agg/Worker.0"),
        cpu=0.5,
    )
    return before, now


def test_one_row_per_process() -> None:
    before, now = looks()
    view = top(now, before)
    assert view.interval == 2.0
    engine, front = view.processes
    assert (engine.process, engine.components, engine.instance, engine.uptime) == (
        "agg/Worker.0",
        ["Worker"],
        "1e",
        77.5,
    )
    assert (engine.cpu, engine.rss, engine.mailbox, engine.answers) == (25.0, 87 << 20, 0, True)
    assert engine.ingress is None
    assert engine.worker is not None
    assert msgspec.structs.astuple(engine.worker) == (2, 1, 812, 4096, 0.64, 250.0)
    assert (front.components, front.mailbox, front.worker) == (["Processor", "Frontend"], 5, None)
    assert front.ingress is not None
    assert (front.ingress.in_flight, front.ingress.queued, front.ingress.requests_per_second) == (4, 1, 50.0)
    assert front.ingress.ttft_p50 == pytest.approx(0.015)
    assert front.ingress.ttft_p99 == pytest.approx(0.0199)
    assert front.ingress.itl_p50 == pytest.approx(0.05)
    assert front.ingress.itl_p99 == 0.05


def test_the_first_look_has_no_rates() -> None:
    view = top(looks()[1])
    assert view.interval is None
    engine, front = view.processes
    assert engine.cpu is None
    assert engine.worker is not None
    assert (engine.worker.running, engine.worker.tokens_per_second) == (2, None)
    assert front.ingress is not None
    assert (front.ingress.in_flight, front.ingress.requests_per_second, front.ingress.ttft_p50) == (4, None, None)


def test_what_began_since_has_no_rates_either() -> None:
    before, now = looks()
    again = [row("agg/Worker.0", "Worker", 99, restarts=1), *ROWS[1:]]
    view = top(look(102.0, again, worker("agg/Worker.0", 5), cpu=0.1), before)
    engine = view.processes[0]
    assert engine.worker is not None
    assert (engine.cpu, engine.worker.tokens_per_second, engine.restarts) == (None, None, 1)
    assert top(look(102.0, ROWS, holder=2), before).interval is None, "another holder's clock"
    assert top(now, now).interval is None


def test_a_process_that_says_nothing() -> None:
    quiet = top(look(1.0, [row("agg/Worker.0", "Worker", 30)])).processes[0]
    assert (quiet.answers, quiet.mailbox, quiet.worker, state(quiet)) == (False, None, None, "Ready?")
    down = top(look(1.0, [row("a", "B", 0, "Fatal", last_error="no"), row("a", "C", 0, "Ready")])).processes[0]
    assert (down.state, down.last_error, state(down)) == ("Fatal", "no", "Fatal")
    twins = top(look(1.0, [row("a", "B", 1), row("a", "B", 2, session="dynamo-run pid 5")]))
    assert [one.session for one in twins.processes] == ["", "dynamo-run pid 5"]


def test_operators_choose_the_prefix() -> None:
    first = look(1.0, ROWS[1:], ingress("agg/ingress.0", 7, buckets(0), buckets(0), prefix="ours"))
    then = look(2.0, ROWS[1:], ingress("agg/ingress.0", 9, buckets(4, 0), buckets(0), prefix="ours"))
    (front,) = top(then, first).processes
    assert front.ingress is not None
    assert (front.ingress.requests_per_second, front.ingress.ttft_p50) == (2.0, 0.005)


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1))
def test_quantiles_stay_inside(counts: list[int], part: float) -> None:
    total, found = 0, {}
    for bound, count in zip((1.0, 2.0, 4.0, float("inf")), counts, strict=True):
        total += count
        found[bound] = float(total)
    value = quantile(part, found)
    assert (value is None) == (total == 0)
    if value is not None:
        assert 0 <= value <= 4
        assert value <= (quantile(min(1.0, part + 0.1), found) or 0)


def test_words() -> None:
    assert [number(value) for value in (None, 0, 0.34, 9.96, 12.4, 3400.0, 250_000.0, 1.25e6)] == [
        *("-", "0", "0.3", "10.0", "12", "3400", "250k", "1.2M")
    ]
    assert [size(value) for value in (None, 87 << 20, 3 << 29)] == ["-", "87M", "1.5G"]
    assert [age(value) for value in (None, 7.9, 720.0, 18000.0, 300000.0)] == ["-", "7s", "12m", "5h", "3d"]
    assert (both(0.0034, 0.0213), both(None, 1.0)) == ("3.4/21", "-")
    assert (share(None), share(0.641)) == ("-", "64%")


def test_narrow_terminals_lose_columns_in_order() -> None:
    before, now = looks()
    view = top(now, before)
    full = sections(view)
    assert [len(part.columns) for part in full] == [len(BASE) + len(INGRESS), len(BASE) + len(WORKER)]
    last: list[set[str]] = [{column.title for column in part.columns} for part in full]
    for width in range(200, 20, -1):
        parts = sections(view, width)
        titles = [{column.title for column in part.columns} for part in parts]
        assert all(few <= many for few, many in zip(titles, last, strict=True))
        wide = widths(parts)
        for part in parts:
            needed = sum(wide[column.title] + 2 for column in part.columns) - 2
            assert needed <= width or {column.title for column in part.columns} <= {
                *("PROCESS", "STATE", "FLIGHTS", "REQ/S", "RUN", "TOKENS/S")
            }
        last = titles
    assert {"TTFT MS 50/99", "REQ/S"} <= {column.title for column in sections(view, 80)[0].columns}


def test_the_drawing_keeps_to_the_terminal() -> None:
    pytest.importorskip("rich")
    from dynamod.cli.top import drawing, plain

    before, now = looks()
    view = top(now, before)
    for width in (20, 80, 200):
        lines = drawing(view, width, "12:00:00")
        assert all(len(line) <= width for line in lines)
    text = "\n".join(line.plain for line in drawing(view, 200, ""))
    for word in ("agg/ingress.0", "812/4096", "64%", "250", "15/20", "1f"):
        assert word in text
        assert word in plain(view)
    empty = Top("0", "here", 1, 3.0, None, list[ProcessRow]())
    assert "nothing is running" in plain(empty)
    assert "nothing is running" in drawing(empty, 80, "")[-1].plain
