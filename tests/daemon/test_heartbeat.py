"""Who of the Python processes is silent, by clocks alone."""

import logging
from typing import Any

import pytest

from dynamod.daemon.heartbeat import LOOK, PATIENCE, HeartbeatMonitor
from dynamod.message.node import Hello


class Listening:
    """An ear with a clock that the test moves."""

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        self.now = self.looked = 100.0
        self.told: list[tuple[int, str]] = []
        self.ear = HeartbeatMonitor(lambda pid, why: self.told.append((pid, why)), (values or {}).get, lambda: self.now)

    def heartbeat(self, lease: int) -> None:
        self.ear.heartbeat(lease, Hello(f"python/{lease}.0", lease * 10))

    def passes(self, seconds: float, *beating: int) -> None:
        """Time goes by, with a look every 0.1 s, and beats of some processes."""
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK
            for lease in beating:
                self.heartbeat(lease)
            self.looked = self.ear.look(self.looked)


def test_a_process_that_stops_beating_is_silent_until_it_beats() -> None:
    here = Listening()
    here.heartbeat(1)
    here.heartbeat(2)
    here.passes(1.9, 2)
    assert here.told == []
    here.passes(0.3, 2)
    assert here.told == [(10, "silent for 2 s")]
    here.passes(5, 2)
    assert here.told == [(10, "silent for 2 s")]
    here.heartbeat(1)
    assert here.told == [(10, "silent for 2 s"), (10, "")]


def test_rows_of_a_silent_process_say_so() -> None:
    here = Listening()
    here.heartbeat(1)
    here.heartbeat(2)
    here.passes(3, 2)
    rows: list[dict[str, Any]] = [{"pid": pid, "state": "Ready", "last_error": ""} for pid in (10, 20, 30)]
    assert [(row["state"], row["last_error"]) for row in here.ear.rows(rows)] == [
        ("Silent", "silent for 2 s"),
        ("Ready", ""),
        ("Ready", ""),
    ]


def test_who_has_left_or_never_beaten_is_not_judged() -> None:
    here = Listening()
    here.heartbeat(1)
    here.ear.gone(1)
    here.ear.gone(7)
    here.passes(5)
    assert here.told == []
    here.heartbeat(1)
    here.passes(3)
    here.ear.gone(1)
    assert here.told == [(10, "silent for 2 s"), (10, "")], "nothing of it stays in the registry"


def test_a_late_look_judges_nobody() -> None:
    here = Listening()
    here.heartbeat(1)
    here.now += 60
    here.looked = here.ear.look(here.looked)
    here.passes(1.9)
    assert here.told == []
    here.passes(0.3)
    assert here.told == [(10, "silent for 2 s")]


def test_a_process_may_ask_for_more_patience() -> None:
    here = Listening({f"{PATIENCE}10": b"30", f"{PATIENCE}20": b"nonsense"})
    here.heartbeat(1)
    here.heartbeat(2)
    here.passes(29)
    assert here.told == [(20, "silent for 2 s")]
    here.passes(2)
    assert here.told[1:] == [(10, "silent for 30 s")]


def test_the_variable_is_for_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DYNAMOD_HEARTBEAT_TIMEOUT", "5")
    here = Listening()
    here.heartbeat(1)
    here.passes(4.8)
    assert here.told == []
    here.passes(0.5)
    assert here.told == [(10, "silent for 5 s")]
    monkeypatch.setenv("DYNAMOD_HEARTBEAT_TIMEOUT", "soon")
    with caplog.at_level(logging.ERROR):
        HeartbeatMonitor(lambda _pid, _why: None)
    assert "DYNAMOD_HEARTBEAT_TIMEOUT is 'soon'" in caplog.text
