"""What a process reports: the phases of its start, and what each of its components does."""

from dynamod.daemon.reported import Phases, Reported
from dynamod.message.node import State


def test_each_phase_has_its_seconds() -> None:
    now = 10.0
    phases = Phases(lambda: now)
    assert (phases.current, phases.seconds()) == ("", {})
    phases.begin("spawn")
    now = 11.0
    phases.begin("download")
    now = 13.5
    phases.begin("download")
    assert (phases.current, phases.seconds()) == ("download", {"spawn": 1.0, "download": 2.5})
    now = 14.0
    phases.begin("load")
    phases.end()
    now = 99.0
    phases.end()
    assert (phases.current, phases.seconds()) == ("", {"spawn": 1.0, "download": 3.0, "load": 0.0})


def test_a_phase_that_comes_again_adds_up() -> None:
    now = 0.0
    phases = Phases(lambda: now)
    for _ in range(2):
        phases.begin("load")
        now += 1.0
        phases.end()
    assert phases.seconds() == {"load": 2.0}


def test_a_component_with_nothing_to_say_does_not_hide_what_another_one_does() -> None:
    reported = Reported(lambda: 0.0)
    reported.take(State("Worker", "Starting", "loads the model"))
    reported.take(State("Processor", "Ready"))
    assert (reported.detail, reported.details) == ("loads the model", {"Worker": "loads the model"})
    reported.take(State("Processor", "Ready", "becomes decode"))
    assert reported.detail == "becomes decode"
    reported.take(State("Processor", ""))
    assert reported.detail == "loads the model"
    reported.take(State("Worker", "Ready"))
    assert (reported.detail, reported.details) == ("", {})


def test_a_refusal_is_the_detail_of_a_process() -> None:
    reported = Reported(lambda: 0.0)
    reported.take(State("Worker", "Starting", "loads the model"))
    reported.refusal = "another release"
    assert reported.detail == "another release"
