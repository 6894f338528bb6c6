"""Probes of a daemon: what rows mean, wrong addresses."""

import pytest

from dynamod.features.kubernetes.place import place
from dynamod.features.kubernetes.probes import not_live, not_ready
from dynamod.message.errors import UserError
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


@pytest.mark.parametrize("text", ["9090", "all:9090", "0.0.0.0:", "0.0.0.0:70000"])
def test_a_wrong_address_names_the_variable(text: str) -> None:
    with pytest.raises(UserError, match="DYNAMOD_PROBES is"):
        place({"DYNAMOD_PROBES": text})
    assert place({"DYNAMOD_PROBES": "[::]:9090"}) == ("::", 9090)
    assert place({}) is None
