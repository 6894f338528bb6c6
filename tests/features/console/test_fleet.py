"""Looks at several nodes as one fleet."""

from typing import Any

import msgspec
import pytest

from dynamod.features.cluster.commands import ANSWERS, SILENT, NodeAnswer
from dynamod.features.console.fleet import fleet, looks_of, models_of
from dynamod.features.top.rows import Look
from dynamod.runtime.statistics import ProcessStatistics

from .served import row, serving
from .test_routes import events, first


def look(node: str, at: float, tokens: float) -> Look:
    engine = {"running": 1.0, "waiting": 0.0, "tokens": tokens}
    told = {"agg/Worker.0": ProcessStatistics({}, {"Worker": {**engine}}, None)}
    return Look("0", node, 7, at=at, rows=[row("agg/Worker.0")], statistics=told)


def answers(*found: tuple[str, Look | None]) -> bytes:
    return msgspec.json.encode(
        [
            NodeAnswer(node=node, state=ANSWERS if one else SILENT, own=node == "one", answer=one and {**_plain(one)})
            for node, one in found
        ]
    )


def _plain(one: Look) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(one)
    return plain


def test_processes_of_other_nodes_have_the_name_of_the_node() -> None:
    before = looks_of(answers(("two", look("two", 1, 0)), ("one", look("one", 5, 0))), several=True)
    now = looks_of(answers(("two", look("two", 2, 30)), ("one", look("one", 7, 30)), ("three", None)), several=True)
    view, rows = fleet(now, before)
    assert (view.node, [one.process for one in view.processes]) == ("one", ["agg/Worker.0", "two/agg/Worker.0"])
    speeds = [one.worker.tokens_per_second for one in view.processes if one.worker is not None]
    assert speeds == [15.0, 30.0], "each by the clock of its node"
    assert [(one.process, one.graph) for one in rows] == [("agg/Worker.0", "agg"), ("two/agg/Worker.0", "two/agg")]


def test_models_stand_with_the_process_through_which_they_are_asked() -> None:
    plain = msgspec.to_builtins([row("agg/Worker.0", models=["a", "b"]), row("agg/Worker.1")])
    assert models_of(plain, several=False) == {"agg/Worker.0": ["a", "b"]}
    of_nodes = [NodeAnswer(node=name, state=ANSWERS, own=name == "one", answer=plain) for name in ("one", "two")]
    given = msgspec.to_builtins([*of_nodes, NodeAnswer(node="three", state=SILENT)])
    assert models_of(given, several=True) == {"agg/Worker.0": ["a", "b"], "two/agg/Worker.0": ["a", "b"]}
    with pytest.raises(msgspec.ValidationError):
        models_of([{"process": 7}], several=False)


def test_one_node_is_as_it_says() -> None:
    found = looks_of(msgspec.json.encode(look("one", 1, 0)), several=False)
    view, rows = fleet(found)
    assert (view.node, len(view.processes), len(rows)) == ("one", 1, 1)
    with pytest.raises(msgspec.ValidationError, match="own node"):
        looks_of(answers(("two", look("two", 1, 0))), several=True)


async def test_an_open_console_is_told_of_nodes_that_do_not_answer() -> None:
    async with serving() as served:
        served.daemon.answers["nodes"] = [{"node": "one", "state": ANSWERS, "own": True}]
        found = events(served)
        assert [one["node"] for one in await first(found, "nodes")] == ["one"]
        await found.aclose()  # type: ignore[attr-defined]
