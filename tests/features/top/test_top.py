"""Two looks at a node become rows; rows become columns that fit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.top.columns import BASE, INGRESS, WORKER, age, both, number, sections, size, widths
from dynamod.features.top.rows import Look, ProcessRow, StepFacts, TierFacts, Top, quantile, remembering, top
from dynamod.http.metrics import HttpStatistics
from dynamod.observe.metrics import Buckets
from dynamod.runtime.statistics import PoolFacts, ProcessStatistics


def buckets(*counts: int) -> Buckets:
    return Buckets((0.01, 0.02, 0.05)[: len(counts) - 1], counts, 0.0)


def ingress(requests: int, ttft: Buckets, itl: Buckets) -> ProcessStatistics:
    mailboxes = {"Processor": 4, "Frontend": 1, "registry": 9}
    return ProcessStatistics(mailboxes, {}, HttpStatistics(requests, 4, 1, ttft, itl))


def worker(tokens: int) -> ProcessStatistics:
    engine = {
        "running": 2,
        "waiting": 1,
        "tokens": tokens,
        "total_blocks": 4096,
        "active_blocks": 812,
        "hit_rate": 0.64,
    }
    return ProcessStatistics({"Worker": 0}, {"Worker": {**engine, "in_step_for": None}}, None)


def row(process: str, component: str, pid: int, state: str = "Ready", **more: object) -> dict[str, object]:
    fixed = {"graph": "agg", "component": component, "process": process, "state": state, "pid": pid}
    return {**fixed, "restarts": 0, "uptime": 5.0, "last_error": "", "session": "", **more}


def look(
    at: float, rows: list[dict[str, object]], *, cpu: float = 0.0, holder: int = 1, **told: ProcessStatistics
) -> Look:
    pids = {str(one["pid"]): {"cpu": cpu, "rss": 87 << 20} for one in rows}
    names = {"worker": "agg/Worker.0", "ingress": "agg/ingress.0"}
    answer = {
        "version": "0",
        "node": "here",
        "pid": holder,
        "uptime": 9.0,
        "at": at,
        "rows": rows,
        "instances": {pid: f"{int(pid):x}" for pid in pids},
        "vitals": pids,
        "statistics": msgspec.json.decode(msgspec.json.encode({names[key]: one for key, one in told.items()})),
    }
    return msgspec.convert(answer, Look)


ROWS = [row("agg/Worker.0", "Worker", 30), row("agg/ingress.0", "Processor", 31), row("agg/ingress.0", "Frontend", 31)]


def looks() -> tuple[Look, Look]:
    before = look(100.0, ROWS, worker=worker(1000), ingress=ingress(17, buckets(7, 0, 0, 0), buckets(9, 0, 0, 0)))
    now = look(
        102.0, ROWS, worker=worker(1500), ingress=ingress(117, buckets(7, 100, 0, 0), buckets(9, 0, 50, 50)), cpu=0.5
    )
    return before, now


def test_one_row_per_process() -> None:
    before, now = looks()
    view = top(now, before)
    assert view.interval == 2.0
    engine, front = view.processes
    assert (engine.process, engine.components, engine.instance) == ("agg/Worker.0", ["Worker"], "1e")
    assert engine.uptime == 5.0
    assert (engine.cpu, engine.rss, engine.mailbox, engine.answers) == (25.0, 87 << 20, 0, True)
    assert engine.ingress is None
    assert engine.worker is not None
    assert msgspec.structs.astuple(engine.worker) == (2, 1, 812, 4096, 0.64, 250.0, "", None, None, None, None)
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
    view = top(look(102.0, again, worker=worker(5), cpu=0.1), before)
    engine = view.processes[0]
    assert engine.worker is not None
    assert (engine.cpu, engine.worker.tokens_per_second, engine.restarts) == (None, None, 1)
    assert top(look(102.0, ROWS, holder=2), before).interval is None, "another holder's clock"
    assert top(now, now).interval is None


def test_a_process_that_says_nothing() -> None:
    quiet = top(look(1.0, [row("agg/Worker.0", "Worker", 30)])).processes[0]
    assert (quiet.answers, quiet.mailbox, quiet.worker, quiet.shown_state) == (False, None, None, "Ready?")
    down = top(look(1.0, [row("a", "B", 0, "Fatal", last_error="no"), row("a", "C", 0, "Ready")])).processes[0]
    assert (down.state, down.last_error, down.shown_state) == ("Fatal", "no", "Fatal")
    twins = top(look(1.0, [row("a", "B", 1), row("a", "B", 2, session="dynamo-run pid 5")]))
    assert [one.session for one in twins.processes] == ["", "dynamo-run pid 5"]


def test_what_did_not_answer_before_has_no_rates() -> None:
    _, now = looks()
    engine, front = top(now, look(100.0, ROWS)).processes
    assert engine.worker is not None
    assert front.ingress is not None
    assert (engine.worker.running, engine.worker.tokens_per_second) == (2, None)
    assert (front.ingress.requests_per_second, front.ingress.ttft_p50, front.ingress.itl_p99) == (None, None, None)


def test_engines_of_one_process_are_summed() -> None:
    engines = {"a": {"running": 1, "tokens": 5, "hit_rate": 0.2}, "b": {"running": 2, "tokens": 7, "hit_rate": 0.6}}
    told = ProcessStatistics({}, {**engines, "echo": {"running": 1, "waiting": 3, "tokens": 1}}, None)
    (one,) = top(look(1.0, ROWS[:1], worker=told)).processes
    assert one.worker is not None
    assert (one.worker.running, one.worker.waiting, one.worker.total_blocks) == (4, 3, None)
    assert one.worker.hit_rate == pytest.approx(0.4)


def test_steps_are_those_of_the_engine_whose_step_lasts_longest() -> None:
    def told(steps: int, **more: float | None) -> ProcessStatistics:
        engines: dict[str, dict[str, float | None]] = {
            "a": {"running": 1, "steps": steps, "in_step_for": None, "step_tokens": 0, "usual_step_seconds": 0.0},
            "b": {"running": 1, "steps": 7, **more},
        }
        return ProcessStatistics({}, engines, None)

    now = told(30, in_step_for=0.25, step_tokens=40, usual_step_seconds=0.01)
    first = top(look(1.0, ROWS[:1], worker=told(10))).processes[0].worker
    second = top(look(3.0, ROWS[:1], worker=now), look(1.0, ROWS[:1], worker=told(10))).processes[0].worker
    assert first is not None
    assert second is not None
    assert first.steps == StepFacts(None, None, 0, 0.0)
    assert second.steps == StepFacts(10.0, 0.25, 40, 0.01)


def test_pools_are_shown_where_there_are_some() -> None:
    def titles(told: ProcessStatistics) -> list[str]:
        (part,) = sections(top(look(1.0, ROWS[:1], worker=told)))
        return [column.title for column in part.columns]

    plain = worker(0)
    assert not {"POOL", "SESSIONS"} & set(titles(plain))
    prefill = msgspec.structs.replace(plain, pools={"Worker": PoolFacts("prefill", 3)})
    assert {"POOL", "SESSIONS"} <= set(titles(prefill))
    (one,) = top(look(1.0, ROWS[:1], worker=prefill)).processes
    assert one.worker is not None
    assert (one.worker.pool, one.worker.sessions) == ("prefill", 3)
    decode = msgspec.structs.replace(plain, pools={"Worker": PoolFacts("decode")})
    assert "POOL" in titles(decode)
    assert "SESSIONS" not in titles(decode)


def test_errors_are_shown_where_there_are_some() -> None:
    def shown(errors: int) -> str:
        told = ingress(9, buckets(1), buckets(1))
        assert told.http is not None
        after = msgspec.structs.replace(told, http=msgspec.structs.replace(told.http, errors=errors))
        view = top(look(102.0, ROWS, ingress=after), look(100.0, ROWS, ingress=told))
        cells = {
            column.title: column.cell(row) for part in sections(view) for column in part.columns for row in part.rows
        }
        return cells.get("ERR/S", "")

    assert (shown(0), shown(3)) == ("", "1.5")


def test_tiers_are_shown_where_there_are_some() -> None:
    def with_tiers(**numbers: float | None) -> ProcessStatistics:
        plain = worker(0)
        return msgspec.structs.replace(plain, engines={"Worker": {**plain.engines["Worker"], **numbers}})

    host = {"host_tier_blocks": 93, "host_tier_bytes": 12 << 20, "host_tier_loaded": 186}
    (one,) = top(look(1.0, ROWS[:1], worker=with_tiers(**host, disk_tier=None))).processes
    assert one.worker is not None
    assert (one.worker.host, one.worker.disk) == (TierFacts(93, 12 << 20, 186), None)
    (part,) = sections(top(look(1.0, ROWS[:1], worker=with_tiers(**host, disk_tier=None))))
    cells = {column.title: column.cell(one) for column in part.columns}
    assert cells["HOST N/SIZE/HITS"] == "93/12M/186"
    assert "DISK N/SIZE/HITS" not in cells
    none = top(look(1.0, ROWS[:1], worker=with_tiers(host_tier=None, disk_tier=None)))
    assert not [column.title for part in sections(none) for column in part.columns if "HITS" in column.title]


BOUNDS = (1.0, 2.0, 4.0)


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1))
def test_quantiles_stay_inside(counts: list[int], part: float) -> None:
    value = quantile(part, BOUNDS, counts)
    assert (value is None) == (sum(counts) == 0)
    if value is not None:
        assert 0 <= value <= 4
        assert value <= (quantile(min(1.0, part + 0.1), BOUNDS, counts) or 0)


def test_words() -> None:
    assert [number(value) for value in (0, 0.34, 9.96, 12.4, 3400.0, 250_000.0, 1.25e6)] == [
        *("0", "0.3", "10.0", "12", "3400", "250k", "1.2M")
    ]
    assert [size(value) for value in (87 << 20, 3 << 29)] == ["87M", "1.5G"]
    assert [age(value) for value in (7.9, 720.0, 18000.0, 300000.0)] == ["7s", "12m", "5h", "3d"]
    assert both(0.0034, 0.0213) == "3.4/21"


def test_what_is_not_known_is_a_dash() -> None:
    front, engine = sections(top(look(102.0, ROWS, worker=worker(5), ingress=ingress(1, buckets(1), buckets(1)))))
    cells = {column.title: column.cell(row) for part in (front, engine) for column in part.columns for row in part.rows}
    dashes = ("CPU%", "REQ/S", "TTFT MS 50/99", "ITL MS 50/99", "TOKENS/S")
    assert {title for title, cell in cells.items() if cell == "-"} == set(dashes)
    assert (cells["HIT"], cells["BLOCKS"], cells["RESTARTS"], cells["QUEUED"]) == ("64%", "812/4096", "0", "1")


def test_narrow_terminals_lose_columns_in_order() -> None:
    before, now = looks()
    view = top(now, before)
    full = sections(view)
    assert [len(part.columns) for part in full] == [
        len(BASE) + len([one for one in INGRESS if not one.rare]),
        len(BASE) + len([one for one in WORKER if not one.rare]),
    ]
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
    from dynamod.features.top.view import drawing, plain

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


def test_times_stay_on_the_screen_when_nothing_comes() -> None:
    before, now = looks()
    busy = top(now, before)
    later = msgspec.structs.replace(now, at=now.at + 1.0)
    quiet = top(later, now)
    (facts,) = [row.ingress for row in quiet.processes if row.ingress is not None]
    assert (facts.ttft_p50, facts.requests_per_second) == (None, 0.0)
    (seen,) = [row.ingress for row in remembering(quiet, busy).processes if row.ingress is not None]
    (were,) = [row.ingress for row in busy.processes if row.ingress is not None]
    assert were.ttft_p50 is not None
    assert (seen.ttft_p50, seen.itl_p99, seen.requests_per_second) == (were.ttft_p50, were.itl_p99, 0.0)
    other = msgspec.structs.replace(
        busy, processes=[msgspec.structs.replace(row, pid=row.pid + 1000) for row in busy.processes]
    )
    assert remembering(quiet, other) == quiet, "another process has times of its own"
