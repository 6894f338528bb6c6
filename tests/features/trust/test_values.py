"""Values of the registry with signatures: in a store of the test, and in a real etcd that strangers write too."""

import asyncio
from typing import Any

import pytest

from dynamod.discovery.etcd.client import Change, Item, connect
from dynamod.discovery.etcd.signed import ENDED, SIGNATURES, SignedValues, signature_key
from dynamod.features.trust.signer import TrustSigner
from dynamod.transport.signing import Signing
from tests.discovery.conftest import eventually, nodes, shared_etcd, until

from .conftest import THEIRS, signing, trusting

__all__ = ["eventually", "nodes", "shared_etcd"]

KEY = "v1/instances/a"


def values(own: Signing, *keys: str) -> SignedValues:
    return SignedValues(own, lambda key: key in keys)


def revision(number: int, found: list[tuple[str, bytes]], lease: int = 7) -> list[Change]:
    """What a watch says of keys that were put together."""
    return [Change(key, Item(value, lease, number), number) for key, value in found]


def test_without_a_signer_all_passes() -> None:
    plain = values(Signing())
    assert plain.outgoing([(KEY, b"x")], 7) == [(KEY, b"x")]
    changes = revision(3, [(KEY, b"x")])
    assert plain.changes(changes) == changes
    assert plain.beside(KEY) == []


def test_a_signed_value_is_taken_and_its_signature_is_seen_by_nobody() -> None:
    put = values(signing("accept")).outgoing([(KEY, b"x")], 7)
    assert [key for key, _ in put] == [KEY, signature_key(KEY)] == [KEY, f"{SIGNATURES}instances/a"]
    here = values(signing("require", node="two"))
    assert here.changes(revision(3, put)) == revision(3, put[:1])
    items = {change.key: change.item for change in revision(3, put) if change.item is not None}
    assert list(here.snapshot(items, 3)) == [KEY]


@pytest.mark.parametrize("sender", [signing("off"), signing("accept", THEIRS)])
def test_a_value_of_an_unknown_node_changes_nothing(sender: Signing) -> None:
    here = values(signing("require", node="two"))
    put = values(sender).outgoing([(KEY, b"x")], 7)
    assert here.changes(revision(3, put)) == []
    assert values(signing("accept", node="two")).changes(revision(3, put)) == revision(3, put[:1])


def test_a_signature_is_good_for_key_lease_value_and_revision() -> None:
    put = values(signing("accept")).outgoing([(KEY, b"x")], 7)
    here = values(signing("require", node="two"))
    assert here.changes(revision(3, put, lease=8)) == []
    assert here.changes(revision(3, [(KEY, b"y"), put[1]])) == []
    assert here.changes(revision(3, [("v1/instances/b", b"x"), (signature_key("v1/instances/b"), put[1][1])])) == []
    assert here.changes([*revision(3, put[:1]), *revision(4, put[1:])]) == []
    assert here.changes(revision(5, put)) == revision(5, put[:1])


def test_an_old_value_does_not_come_back() -> None:
    sender = values(signing("accept"))
    first, second = sender.outgoing([(KEY, b"x")], 7), sender.outgoing([(KEY, b"y")], 7)
    here = values(signing("require", node="two"))
    assert here.changes(revision(3, first))
    assert here.changes(revision(4, second))
    assert here.changes(revision(5, first)) == []
    assert here.changes([Change(KEY, None, 6)]) == [Change(KEY, None, 6)]
    assert here.changes(revision(7, second)) == [], "it is gone and stays gone"
    assert here.changes(revision(8, sender.outgoing([(KEY, b"z")], 7)))


def test_several_revisions_at_once() -> None:
    sender, here = values(signing("accept")), values(signing("require", node="two"))
    found = [change for number in (3, 4) for change in revision(number, sender.outgoing([(KEY, b"x")], 7))]
    assert [change.revision for change in here.changes(found)] == [3, 4]


def test_a_forged_value_at_an_own_key_counts_as_gone() -> None:
    here = values(signing("require"), KEY)
    assert here.changes(revision(3, [(KEY, b"forged")])) == [Change(KEY, None, 3)]


def test_keys_that_are_gone_are_remembered_up_to_a_bound() -> None:
    sender, here = values(signing("accept")), values(signing("require", node="two"))
    for number in range(ENDED + 10):
        key = f"v1/k{number}"
        here.changes(revision(number + 1, sender.outgoing([(key, b"x")], 7)))
        here.changes([Change(key, None, number + 1)])
    assert len(here._ended) == ENDED


class Trusting:
    """A node of a real etcd with a signer, whose mode a test changes."""

    def __init__(self, nodes: Any, settings: Any, name: str, mode: Any) -> None:
        self.node = nodes(settings)
        self.signer = TrustSigner(name, trusting(mode))
        self.signing: Signing = self.node.bridge._signing
        if mode != "off":
            self.signing.use(self.signer)

    def mode(self, mode: Any) -> None:
        self.signer.use(trusting(mode))
        self.signing.use(self.signer)


async def test_two_nodes_turn_it_on_while_nothing_leaves(shared_etcd: Any, nodes: Any) -> None:
    one, two = (Trusting(nodes, shared_etcd.settings(), name, "off") for name in ("one", "two"))
    lease = one.node.put("v1/instances/a", b"a")
    more = one.node.registry.grant()
    for number in range(150):  # more than one call of etcd takes with signatures
        one.node.put(f"v1/many/{number}", b"x", more)
    two.node.put("v1/instances/b", b"b")
    for both in (one, two):
        await until(lambda both=both: len(both.node.seen) == 152)
    for mode in ("accept", "require"):
        for both in (one, two):
            both.mode(mode)
            await both.node.joined()
        await asyncio.gather(one.node.settled(), two.node.settled())
        await until(lambda: all(both.signer.statistics().proven for both in (one, two)))
    one.node.put("v1/instances/a", b"new", lease)
    await until(lambda: two.node.seen["v1/instances/a"] == b"new")
    assert len(two.node.seen) == len(one.node.seen) == 152
    assert [key for key, value in [*one.node.news, *two.node.news] if value is None] == []
    assert (one.signer.statistics().refused, two.signer.statistics().refused) == (0, 0)
    async with connect(shared_etcd.settings().endpoints[0], shared_etcd.settings()) as raw:
        one.node.registry.delete("v1/instances/a", lease)
        await until(lambda: "v1/instances/a" not in two.node.seen)
        found, _ = await raw.snapshot("v1/")
        assert {"v1/instances/a", signature_key("v1/instances/a")} & found.keys() == set()


async def test_a_flood_of_forged_values(shared_etcd: Any, nodes: Any) -> None:
    one, two = (Trusting(nodes, shared_etcd.settings(), name, "require") for name in ("one", "two"))
    one.node.put("v1/instances/a", b"a")
    await until(lambda: two.node.seen == {"v1/instances/a": b"a"})
    settings = shared_etcd.settings()
    async with connect(settings.endpoints[0], settings) as raw:
        await raw.grant(77, 60)
        for number in range(20):
            await raw.put([(f"v1/instances/f{number}-{one}", b"forged") for one in range(50)], 77)
        await raw.put([("v1/instances/a", b"forged")], 77)
        await until(lambda: two.signer.statistics().refused >= 1000)
        await until(lambda: two.node.seen == {"v1/instances/a": b"a"})
        await raw.revoke(77)
    one.node.put("v1/instances/b", b"b")
    await until(lambda: two.node.seen.get("v1/instances/b") == b"b")
    assert all(value != b"forged" for _, value in two.node.news)
