"""What other pods hold, as keys of this node's registry. Synchronous; knows no network."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dynamod.discovery.keys import CARDS, INSTANCES, SHARED
from dynamod.discovery.memory import MemoryRegistry

from .resources import Instance, Slice

log = logging.getLogger("dynamod.registry")


class Peers:
    """`own`: the name of this pod, whose keys the registry has already.

    Instances and cards of a pod count when the pod is ready in an EndpointSlice and has its resource. The other keys of
    a pod count with the resource: that requests wait at a frontend without workers starts these workers.
    """

    def __init__(self, registry: MemoryRegistry, own: str) -> None:
        self._registry, self._own = registry, own
        self._instances: dict[str, Instance] = {}
        self._slices: dict[str, set[str]] = {}
        self._ready: frozenset[str] = frozenset()
        self._shown: dict[str, dict[str, str]] = {}  # by pod, the keys that stand in the registry
        self._holders: dict[str, str] = {}
        self._wrong: set[str] = set()
        self._contested: set[str] = set()

    # What the API server says.

    def instances(self, found: Mapping[str, Any]) -> None:
        """All resources of pods, by name. What is missing is gone."""
        for name in [*self._instances, *self._wrong]:
            if name not in found:
                self.instance(name, None)
        for name, value in found.items():
            self.instance(name, value)

    def instance(self, name: str, value: Any) -> None:
        """The resource of one pod, undecoded; None: it is gone."""
        self._instances.pop(name, None)
        self._wrong.discard(name)
        if value is not None and name != self._own:
            try:
                self._instances[name] = msgspec.convert(value, Instance)
            except msgspec.ValidationError as error:
                self._wrong.add(name)
                log.warning("the resource %s is no DynamodInstance of this release and is skipped: %s", name, error)
        self._settle(name)

    def slices(self, found: Mapping[str, Any]) -> None:
        """All EndpointSlices, by name."""
        self._slices = {name: self._of_slice(name, value) for name, value in found.items()}
        self._look()

    def slice(self, name: str, value: Any) -> None:
        """One EndpointSlice, undecoded; None: it is gone."""
        self._slices.pop(name, None)
        if value is not None:
            self._slices[name] = self._of_slice(name, value)
        self._look()

    def _of_slice(self, name: str, value: Any) -> set[str]:
        self._wrong.discard(name)
        try:
            return msgspec.convert(value, Slice).ready()
        except msgspec.ValidationError as error:
            self._wrong.add(name)
            log.warning("the EndpointSlice %s cannot be read and is skipped: %s", name, error)
            return set()

    def _look(self) -> None:
        before, self._ready = self._ready, frozenset[str]().union(*self._slices.values())
        changed = before ^ self._ready
        for name, instance in self._instances.items():
            if instance.pod in changed:
                self._settle(name)

    # What the registry has of it.

    def _settle(self, name: str) -> None:
        instance = self._instances.get(name)
        wanted = self._counting(instance) if instance is not None else {}
        shown = self._shown.pop(name, {})
        for key in shown.keys() - wanted.keys():
            del self._holders[key]
            self._registry.delete_foreign(key)
            self._next_holder(key)
        for key in [key for key in wanted if self._holders.setdefault(key, name) != name]:
            del wanted[key]
            if key not in self._contested:
                self._contested.add(key)
                log.warning("%s is held by the pods %s and %s; the first one counts", key, self._holders[key], name)
        for key, value in wanted.items():
            if shown.get(key) != value:
                self._registry.put_foreign(key, value.encode())
        if wanted:
            self._shown[name] = wanted

    def _next_holder(self, key: str) -> None:
        if key in self._contested:
            self._contested.discard(key)
            for name, instance in self._instances.items():
                if key in instance.spec.keys:
                    self._settle(name)
                    return

    def _counting(self, instance: Instance) -> dict[str, str]:
        ready = instance.pod in self._ready
        return {
            key: value
            for key, value in instance.spec.keys.items()
            if key.startswith(SHARED) and (ready or not key.startswith((INSTANCES, CARDS)))
        }

    def statistics(self) -> dict[str, int]:
        """Pods with a resource, pods that are ready, resources that were skipped, keys that two pods hold."""
        return {
            "pods": len(self._instances),
            "ready": sum(one.pod in self._ready for one in self._instances.values()),
            "skipped": len(self._wrong),
            "contested": len(self._contested),
        }
