"""The history of the four figures, and decisions under another policy."""

import gc
import random
import sys
from collections import Counter

import pytest

from dynamod.features.console.figures import History, Point, point
from dynamod.features.console.recorder import KEPT, Recorder
from dynamod.features.console.whatif import MODES, fit, what_if
from dynamod.features.top.rows import IngressFacts, ProcessRow, Top, WorkerFacts
from dynamod.observe.bounded import holdings
from dynamod.router.decision import Candidate, Decision
from tools.vendored import listed, wrong_files

from .served import record, travelled


def process(**facts: object) -> ProcessRow:
    given = {"ingress": None, "worker": None, **facts}
    return ProcessRow("g/p", "g", ["p"], "", "Ready", True, 1, "", 0, 1.0, 1.0, 1, 0, "", **given)  # type: ignore[arg-type]


def test_figures_are_sums_and_times_those_of_the_slowest() -> None:
    one = IngressFacts(1, 0, 2.0, 0.1, 0.4, None, None, 0.5)
    two = IngressFacts(1, 0, 3.0, 0.2, 0.3, None, None, 0.0)
    worker = WorkerFacts(1, 0, None, None, None, 40.0)
    view = Top(processes=[process(ingress=one), process(ingress=two), process(worker=worker), process(worker=worker)])
    assert point(9.0, view) == Point(9.0, 5.0, 0.5, 0.2, 0.4, 80.0)
    assert point(9.0, Top()) == Point(9.0, None, None, None, None, None)


def test_the_history_has_an_hour() -> None:
    history = History()
    assert history.due(0.0)
    for at in range(0, 5000, 5):
        assert history.due(float(at))
        history.add(Point(float(at), 1.0, 0.0, None, None, None))
        assert not history.due(at + 3.0)
    found = [one.at for one in history.points()]
    assert found[-1] == 4995.0
    assert found[-1] - found[0] <= 3600.0
    assert len(found) == 720
    history.add(Point(20_000.0, 1.0, 0.0, None, None, None))
    assert [one.at for one in history.points()] == [20_000.0]


def held() -> Counter[tuple[int, int]]:
    """What each recorder of this process holds, and its bound."""
    return Counter((one.count, one.bound) for one in holdings() if one.name == "requests for the console")


def test_what_other_readers_want_of_a_request_is_not_kept() -> None:
    """Bodies of up to 4 MiB each, tokens and headers, where the request trace or the audit log takes them."""
    gc.collect()  # recorders of tests before this one
    others, recorder, large = held(), Recorder(list), bytes(10_000)
    headers, counts = {"authorization": "Bearer secret"}, sys.getrefcount(large)
    for number in range(KEPT + 100):
        given = {"request_body": large, "response_body": large, "headers": headers}
        recorder.take(record(number, timeline=travelled(), error="x", **given))
    del given
    assert sys.getrefcount(large) == counts
    assert "secret" not in str(recorder.find(f"request-{KEPT}", None))
    assert [*(held() - others).elements()] == [(KEPT, KEPT)]
    (row,) = recorder.after(recorder.number - 1, None)
    assert (row["error"], bool(row["phases"])) == ("x", True)


def decision(number: int, chosen: int, *candidates: Candidate) -> Decision:
    return Decision(f"r{number}", "m", "round-robin", 0.0, 64, 16, candidates, chosen, "turn")


def test_a_policy_that_knows_caches_reuses_more() -> None:
    kept = [
        decision(
            number, 1 + number % 2, Candidate(1, 4 if number % 2 else 0, 0), Candidate(2, 0 if number % 2 else 4, 0)
        )
        for number in range(40)
    ]
    found = what_if(kept, "kv", {})
    assert (found.decisions, found.changed, found.blocks) == (40, 40, 160)
    assert (found.reused, found.reused_then) == (0, 160)
    assert found.ttft_ms is None
    times = {one.request: 10.0 + 64.0 for one in kept}
    times["r0"] = 10.5 + 64.0
    again = what_if(
        [*kept, *(decision(100 + n, 1, Candidate(1, 4, 0)) for n in range(40))],
        "kv",
        {**times, **{f"r{100 + n}": 10.0 for n in range(40)}},
    )
    assert again.ttft_ms is not None
    assert again.ttft_ms_then is not None
    assert again.ttft_ms_then == pytest.approx(10.0, abs=1.0)
    assert again.ttft_ms_then < again.ttft_ms


@pytest.mark.parametrize("mode", MODES)
def test_each_policy_chooses_candidates_and_is_repeatable(mode: str) -> None:
    chance = random.Random(3)
    kept = []
    for number in range(200):
        found = [Candidate(one, chance.randrange(5), chance.randrange(9), chance.random()) for one in range(1, 5)]
        kept.append(decision(number, chance.randrange(1, 5), *found))
    kept.append(decision(900, 99, Candidate(1, 0, 0)))  # its chosen worker is not kept
    one = what_if(kept, mode, {})
    assert one == what_if(kept, mode, {})
    assert one.decisions == 200
    assert 0 <= one.reused_then <= one.blocks
    if mode == "least-loaded":
        least = sum(
            min(c.requests for c in d.candidates) == next(c.requests for c in d.candidates if c.instance == d.chosen)
            for d in kept[:200]
        )
        assert one.changed >= 200 - least - 1


def test_a_fit_finds_the_law() -> None:
    chance = random.Random(5)
    rows = [
        (t, n, 3.0 + 0.5 * t + 2.0 * n) for t, n in ((chance.randrange(900), chance.randrange(9)) for _ in range(99))
    ]
    assert fit([(float(t), float(n), y) for t, n, y in rows]) == pytest.approx((3.0, 0.5, 2.0), abs=1e-3)
    a, b, c = fit([(64.0, 0.0, 12.0)] * 30)
    assert a + 64 * b + 0 * c == pytest.approx(12.0, abs=0.01)


def test_libraries_are_as_the_list_says_and_have_their_licences() -> None:
    assert list(wrong_files()) == []
    for library in listed()["libraries"]:
        assert any("LICENSE" in one["file"] for one in library["files"]), library["name"]
        assert library["license"] in ("MIT", "Apache-2.0")
