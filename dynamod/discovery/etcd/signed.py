"""Values of other nodes with their signatures: each stands at a key of its own, put together with its value.

    v1/instances/dynamo/backend/generate/1f        the value
    v1/!signatures/instances/dynamo/backend/generate/1f    its signature, with the same revision

A signature is good for key, lease and value. Releases that know none see keys that mean nothing to them.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dynamod.discovery.keys import SHARED
from dynamod.observe.bounded import bounded
from dynamod.transport.signing import VALUE, NotTrusted, Proof, Signing

from .client import Change, Item

log = logging.getLogger("dynamod.registry")

SIGNATURES = f"{SHARED}!signatures/"
ENDED = 10_000
"""Keys that are gone and whose last signature is remembered: an older one is not taken again."""


def signature_key(key: str) -> str:
    """Where the signature of a key's value stands."""
    return f"{SIGNATURES}{key.removeprefix(SHARED)}"


class SignedValues:
    """What goes to etcd with signatures, and what comes from there without. `own(key)`: whether this node has a key.

    Without a signer values pass as they are.
    """

    def __init__(self, signing: Signing, own: Callable[[str], bool]) -> None:
        self._signing, self._own = signing, own
        self._revision = 0  # of the last snapshot
        self._orders: dict[str, int] = {}  # of the last signature that was taken, by key
        self._ended: OrderedDict[str, int] = OrderedDict()  # the same of keys that are gone
        bounded(self, "signatures of keys that are gone", ENDED, lambda one: len(one._ended), "keys")

    def outgoing(self, items: Iterable[tuple[str, bytes]], lease: int) -> list[tuple[str, bytes]]:
        """Keys and values to put under a lease together: each with its signature, if there is one."""
        signer, found = self._signing.signer, list[tuple[str, bytes]]()
        for key, value in items:
            found.append((key, value))
            if signer is not None and (signature := signer.sign(VALUE, *_parts(key, value, lease))):
                found.append((signature_key(key), signature))
        return found

    def beside(self, key: str) -> list[str]:
        """Keys that are deleted together with this one."""
        return [signature_key(key)] if self._signing.signer is not None else []

    def snapshot(self, items: Mapping[str, Item], revision: int) -> dict[str, Item]:
        """What is taken of all that stands in etcd at a revision."""
        self._revision = revision
        for key in self._orders.keys() - items.keys():
            self._end(key)
        values = {key: item for key, item in items.items() if not key.startswith(SIGNATURES)}
        return {key: item for key, item in values.items() if self._taken(key, item, items.get(signature_key(key)))}

    def changes(self, changes: Iterable[Change]) -> list[Change]:
        """What is taken of some changes, which are complete revisions.

        A value that is not taken changes nothing: the last one that was taken stands. One at a key of this node counts
        as gone, and the node puts its own again.
        """
        listed, found = list(changes), list[Change]()
        # one list has several revisions of a key when the watch is late
        signatures = {(key, at): item for key, item, at in listed if item is not None and key.startswith(SIGNATURES)}
        for change in listed:
            key, item, revision = change
            if key.startswith(SIGNATURES):
                continue
            if revision <= self._revision:  # replayed: the snapshot was judged
                found.append(change)
            elif item is None:
                self._end(key)
                found.append(change)
            elif self._taken(key, item, signatures.get((signature_key(key), revision))):
                found.append(change)
            elif self._own(key):
                found.append(Change(key, None, revision))
        return found

    def _taken(self, key: str, item: Item, beside: Item | None) -> bool:
        signer = self._signing.signer
        if signer is None:
            return True
        signature = beside.value if beside is not None and beside.revision == item.revision else b""
        try:
            proof = signer.check(VALUE, signature, *_parts(key, item.value, item.lease))
            last = self._orders.get(key) or self._ended.get(key, 0)
            if proof.order and (proof.order < last or (proof.order == last and key in self._ended)):
                signer.stale(VALUE, proof)
                proof = Proof()
        except NotTrusted as error:
            log.debug("skipped what stands at %.300r: %s", key, error)
            return False
        if proof.order:
            self._orders[key] = proof.order
            self._ended.pop(key, None)
        return True

    def _end(self, key: str) -> None:
        order = self._orders.pop(key, 0)
        if order:
            self._ended[key] = order
            if len(self._ended) > ENDED:
                self._ended.popitem(last=False)

    def inspection(self) -> dict[str, Any]:
        """How many keys have a signature that was taken."""
        return {"signed": len(self._orders)}


def _parts(key: str, value: bytes, lease: int) -> tuple[bytes, bytes, bytes]:
    return key.encode(), f"{lease:x}".encode(), value
