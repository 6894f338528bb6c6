"""Where the time of a request went: marks of a clock that the test sets."""

from typing import Any

import pytest

from dynamod.ingress.counts import Timelines
from dynamod.observe import timeline
from dynamod.observe.timeline import PHASES, Timeline, last_choice

PLACE = (None, None, 0.001)
"""A place whose decision took a millisecond."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`clock(at)`: the time in seconds."""
    now = [0.0]
    monkeypatch.setattr(timeline, "perf_counter", lambda: now[0])
    return lambda at: now.__setitem__(0, at)


def made(clock: Any, marks: list[tuple[float, str, int, Any]], ended: float = 0.0, **times: float) -> Timeline:
    """A request that comes at 1.0, and whose prompt is ready at 1.010."""
    found = Timeline(1.001, 1.0)
    found.read, found.turn, found.checked, found.lowering, found.lowered = 1.002, 1.003, 1.005, 1.006, 1.010
    for at, what, choice, about in marks:
        found.marks.append((what, choice, at, about))
    found.ended = ended
    for name, at in times.items():
        setattr(found, name, at)
    return found


ONE = [
    (1.010, timeline.ASKED, 0, None),
    (1.014, timeline.PLACED, 0, PLACE),
    (1.015, timeline.SENT, 0, None),
    (1.017, timeline.ACCEPTED, 0, None),
    (1.050, timeline.FIRST, 0, None),
    (1.150, timeline.FINISHED, 0, None),
]


def ms(found: Timeline) -> dict[str, float]:
    """The phases that took time, in milliseconds."""
    return {name: round(seconds * 1000, 6) for name, seconds in found.phases().items() if seconds}


def test_every_moment_belongs_to_one_phase(clock: Any) -> None:
    assert ms(made(clock, ONE, ended=1.152, first_write=1.051)) == {
        "receive": 2,
        "queue": 1 + 1 + 3,
        "preprocess": 2 + 4,
        "route": 1,
        "transport": 3,
        "prefill": 33,
        "first_token": 1,
        "decode": 99,
        "write": 2,
    }


def test_a_move_is_counted_from_the_break_to_the_next_token(clock: Any) -> None:
    again = [
        (1.100, timeline.BROKE, 0, "gone"),
        (1.101, timeline.ASKED, 0, None),
        (1.104, timeline.PLACED, 0, PLACE),
        (1.105, timeline.SENT, 0, None),
        (1.106, timeline.ACCEPTED, 0, None),
        (1.140, timeline.FIRST, 0, None),
        (1.150, timeline.FINISHED, 0, None),
    ]
    found = ms(made(clock, [*ONE[:-1], *again], ended=1.152, first_write=1.051))
    assert (found["migrations"], found["decode"], found["first_token"]) == (40, 49 + 10, 1)
    assert round(sum(found.values()), 6) == 152


def test_an_attempt_without_a_token_is_a_move_too(clock: Any) -> None:
    marks = [
        *ONE[:4],
        (1.020, timeline.BROKE, 0, "refused"),
        *[(at + 0.020, what, choice, about) for at, what, choice, about in ONE],
    ]
    found = ms(made(clock, marks, ended=1.172, first_write=1.071))
    assert round(sum(found.values()), 6) == 172
    assert found["migrations"] == 53  # from the acceptance to the first token elsewhere
    assert "prefill" not in found


def test_a_prompt_at_a_prefill_worker_is_a_handoff(clock: Any) -> None:
    marks = [
        *ONE[:2],
        (1.014, timeline.PREFILL_ASKED, 0, None),
        (1.016, timeline.PREFILL_PLACED, 0, PLACE),
        (1.030, timeline.HANDED, 0, None),
        (1.031, timeline.SENT, 0, None),
        *[(at + 0.020, what, choice, about) for at, what, choice, about in ONE[3:]],
        (1.060, timeline.RELEASED, 0, None),
    ]
    found = ms(made(clock, marks, ended=1.172))
    assert (found["handoff"], found["transport"]) == (16, 1 + 6)
    assert round(sum(found.values()), 6) == 172


def test_of_several_choices_the_last_one_counts(clock: Any) -> None:
    other = [(at + (0.5 if what == timeline.FINISHED else 0), what, 1, about) for at, what, _, about in ONE]
    found = made(clock, sorted([*ONE, *other], key=lambda one: one[0]), ended=1.7)
    assert last_choice(found) == 1
    assert ms(found)["decode"] == 600


def test_a_request_that_never_got_a_place_waits_in_the_queue(clock: Any) -> None:
    found = ms(made(clock, ONE[:1], ended=31.010))
    assert found["queue"] == 30_000 + 2
    clock(5.010)
    assert ms(made(clock, ONE[:1]))["queue"] == pytest.approx(4002)  # it is open: until now
    open_ = Timeline(1.0, 1.0)
    assert sum(open_.phases().values()) == pytest.approx(4.010)


def test_marks_and_kept_requests_are_bounded(clock: Any) -> None:
    found = Timeline(1.0, 1.0)
    for number in range(2000):
        found.marks.append((timeline.ASKED, number, 1.0, None))
    assert len(found.marks) == timeline.MARKS
    kept = Timelines(2)
    for name in "abc":
        kept.keep(name, Timeline(1.0, 1.0))
    assert len(kept) == 2
    assert kept.told("a") is None
    told = kept.told("c")
    assert told is not None
    assert told["open"]
    assert tuple(told["phases_ms"]) == PHASES
