"""What nodes must have in common, and which node is named when they have not."""

from typing import Any

import pytest

from dynamod.features.cluster.agreement import differences, differing
from dynamod.features.cluster.commands import ANSWERS, SILENT, CardFacts, NodeFacts, NodeRow


def row(node: str, *cards: CardFacts, **more: Any) -> NodeRow:
    fields = {"state": ANSWERS, "version": "0.2.0", "protocol": 2, "clock_ms": 0.0, "round_trip_ms": 1.0, **more}
    return NodeRow(node=node, facts=NodeFacts(cards=list(cards)), **fields)


def card(**more: Any) -> CardFacts:
    return CardFacts(**{"model": "m", "mdc_sum": "aa", "block_size": 16, "context_length": 4096, **more})


def said(*rows: NodeRow) -> list[tuple[str, bool, str]]:
    return [(one.check, one.severe, one.found) for one in differences(rows)]


def test_nodes_that_agree() -> None:
    assert said(row("one", card()), row("two", card(), card(model="other")), row("three")) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block_size": 32}, "model m: KV block size differs between nodes: two has 32, the others have 16"),
        (
            {"mdc_sum": "bb"},
            "tokenizer or template differs between nodes: two has bb, the others have aa",
        ),
        ({"context_length": 1}, "model m: context length differs between nodes: two has 1, the others have 4096"),
    ],
)
def test_the_node_that_differs_is_named(change: dict[str, Any], text: str) -> None:
    ((check, severe, found),) = said(row("one", card()), row("two", card(**change)), row("three", card()))
    assert (check, severe) == ("agreement", True)
    assert text in found


def test_of_two_nodes_none_is_right() -> None:
    ((_, _, found),) = said(row("one", card()), row("two", card(block_size=32)))
    assert "one has 16, two has 32" in found


def test_one_node_with_two_kinds_of_workers() -> None:
    ((_, _, found),) = said(row("one", card()), row("two", card(), card(block_size=32)), row("three", card()))
    assert "two has 16 and 32, the others have 16" in found


def test_releases_and_protocols() -> None:
    found = said(row("one"), row("two", version="0.3.0", protocol=3), row("three"))
    assert found == [
        ("protocol", False, "nodes speak several protocols: two has 3, the others have 2"),
        ("releases", False, "nodes run several releases: two has 0.3.0, the others have 0.2.0"),
    ]


@pytest.mark.parametrize(
    ("clocks", "named"),
    [
        ((0.0, 3600e3, 2.0), ["the clock of two differs from most clocks by +3,599,998 ms"]),
        ((0.0, 60e3, 60e3), ["the clock of one differs from most clocks by -60,000 ms"]),
        ((0.0, 400.0, -400.0), []),
    ],
)
def test_the_clock_that_is_off_is_named(clocks: tuple[float, ...], named: list[str]) -> None:
    """Also where it is the clock of the node that asks."""
    rows = [row(node, clock_ms=clock) for node, clock in zip(("one", "two", "three"), clocks, strict=True)]
    assert [found for _, _, found in said(*rows)] == named


def test_a_clock_is_not_blamed_for_a_slow_answer() -> None:
    assert said(row("one"), row("two", clock_ms=700.0, round_trip_ms=800.0), row("three")) == []


def test_a_node_without_an_answer_is_a_finding() -> None:
    silent = NodeRow(node="two", state=SILENT, why="does not answer within 0.8 s")
    found = said(row("one", card()), silent, row("three", card()))
    assert found == [("nodes", True, "two: does not answer within 0.8 s")]


def test_differing() -> None:
    assert differing({}) == ({}, "")
    assert differing({"a": 1, "b": 1}) == ({}, "")
    assert differing({"a": 1, "b": 2, "c": 2}) == ({"a": "1"}, "2")
    assert differing({"a": 1, "b": 2}) == ({"a": "1", "b": "2"}, "")
