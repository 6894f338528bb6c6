"""The other nodes as the registry shows them; what a name like `NODE/Component` means."""

import msgspec
import pytest

from dynamod.features.cluster.nodes import LOST_KEPT_S, MAX_LOST, KnownNodes, node_of, target
from dynamod.message.discovery import NodeRecord

from .conftest import record


def put(known: KnownNodes, place: str, value: NodeRecord | bytes | None = None) -> None:
    """A key of a node gets a record; None: the key goes."""
    known.changed(f"v1/nodes/{place}", msgspec.json.encode(value) if isinstance(value, NodeRecord) else value)


@pytest.fixture
def at() -> list[float]:
    return [1000.0]


@pytest.fixture
def known(at: list[float]) -> KnownNodes:
    return KnownNodes(("one", "m"), lambda: at[0])


def names(known: KnownNodes) -> list[tuple[str, bool]]:
    return [(one.name, one.lost is not None) for one in known.others()]


def test_nodes_come_and_say_that_they_leave(known: KnownNodes) -> None:
    put(known, "one/m/1", record())
    put(known, "two/m/2", record())
    assert names(known) == [("two", False)], "without the node itself"
    assert known.named("two")[0].place.transport == {"nats": "subject"}
    put(known, "two/m/2", record(leaving=True))
    put(known, "two/m/2")
    assert names(known) == []


def test_a_node_that_goes_without_a_word_is_lost_for_a_while(known: KnownNodes, at: list[float]) -> None:
    put(known, "two/m/2", record())
    at[0] = 1010.0
    put(known, "two/m/2")
    (lost,) = known.others()
    assert (lost.name, lost.lost) == ("two", 1010.0)
    put(known, "two/m/3", record())
    assert names(known) == [("two", False)], "it is back"
    put(known, "two/m/3")
    at[0] += LOST_KEPT_S + 1
    assert names(known) == []
    for number in range(3 * MAX_LOST):
        put(known, f"n{number}/m/2", record())
        put(known, f"n{number}/m/2")
    assert len(known.others()) == MAX_LOST


def test_of_a_daemon_that_was_killed_the_old_key_does_not_count(known: KnownNodes) -> None:
    put(known, "two/m/9", record(started=5.0))
    put(known, "two/m/a", record(started=8.0))
    assert [one.lease for one in known.others()] == [10]
    put(known, "two/m/9")
    assert names(known) == [("two", False)]


def test_machines_of_one_name_are_two_rows(known: KnownNodes) -> None:
    put(known, "two/m/9", record())
    put(known, "two/other/9", record())
    assert [one.machine for one in known.named("two")] == ["m", "other"]
    put(known, "one/m/9", record())
    put(known, "one/other/9", record())
    assert [one.machine for one in known.named("one")] == ["other"], "a machine with the name of this node"


def test_what_older_releases_and_strangers_put(known: KnownNodes) -> None:
    put(known, "old/m/9", b"")
    put(known, "damaged/m/9", b"\xff{")
    put(known, "no lease/m/what", b"")
    put(known, "short", b"")
    put(known, "\x1b[2J/m/9", record())
    put(known, "newer/m/9", b'{"version": "9", "protocol": 9, "moods": [], "sections": {"cluster": {"transport": 7}}}')
    assert names(known) == [("newer", False), ("old", False)]
    newer, old = known.others()
    assert (newer.record.protocol, newer.place.transport) == (9, {})
    assert (old.record.protocol, old.place.transport) == (0, {})
    assert node_of("v1/nodes//m/1", b"") is None
    put(known, "old/m/9")
    assert names(known) == [("newer", False)], "an older release ends without a word"


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("Worker", None),
        ("two/Worker", ("two", "Worker")),
        ("two/agg/Worker.0", ("two", "agg/Worker.0")),
        ("two/", ("two", "")),
        ("one/Worker", ("one", "Worker")),
        ("agg/Worker", None),
        ("three/Worker", None),
        ("two", None),
        ("", None),
        ("/Worker", None),
    ],
)
def test_what_a_name_means(name: str, means: tuple[str, str] | None) -> None:
    assert target(name, {"agg"}, {"one", "two", "agg"}) == means
