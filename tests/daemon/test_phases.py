"""The phases of a start."""

from dynamod.daemon.reported import Phases


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
