"""Health of a node: what the rows of its processes mean."""

from dynamod.features.exporter.health import not_live, not_ready
from dynamod.message.rows import Row


def rows(*states: str, component: str = "Worker") -> list[Row]:
    return [Row("g", component, f"g/{component}.{n}", n, state, 0) for n, state in enumerate(states)]


def test_a_pod_is_live_until_no_process_can_go_on() -> None:
    assert not_live([]) == ""
    assert not_live(rows("Starting", "Fatal")) == ""
    assert not_live(rows("Fatal")) == "g/Worker.0 is Fatal"
    assert not_live(rows("Silent", "Fatal")) == "g/Worker.0 is Silent; g/Worker.1 is Fatal"


def test_a_pod_is_ready_when_each_component_has_a_process_that_is() -> None:
    assert not_ready([]) == "no component runs"
    assert not_ready(rows("Starting")) == "g/Worker.0 is Starting"
    assert not_ready(rows("Starting", "Ready")) == ""
    assert not_ready([*rows("Ready"), *rows("Draining", component="Front")]) == "Front: not ready"
