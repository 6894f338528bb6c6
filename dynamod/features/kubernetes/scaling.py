"""Replicas of workloads, read and written by the `scale` subresource of the API."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from dynamod.message.errors import DynamodError, UserError
from dynamod.message.hints import known_hint

from .api import Api
from .resources import SCALES, Kind
from .settings import ServerSettings


class _Numbers(msgspec.Struct, frozen=True):
    replicas: int = 0


class Scale(msgspec.Struct, frozen=True):
    """What the subresource says of a workload."""

    spec: _Numbers = _Numbers()
    status: _Numbers = _Numbers()


class Replicas(NamedTuple):
    """How many pods a workload is to have, and how many it has; pods that leave count as `there`."""

    wanted: int
    there: int


class Scaler:
    """The replicas of workloads in one namespace, by the account of this pod. Methods raise DynamodError."""

    def __init__(self, environ: Mapping[str, str], what: str, *, url: str = "", namespace: str = "") -> None:
        """`what` needs it, for the error; `url`, `namespace`: instead of the variables. Raises UserError."""
        found = ServerSettings.server(environ, what, url, namespace)
        self._server = found if found.namespace else replace(found, namespace="default")
        self._server.trust()

    async def numbers(self, target: str) -> Replicas:
        """The replicas of a workload."""
        kind, name = workload(target)
        async with Api(self._server) as api:
            found = await api.read(kind, name)
        try:
            scale = msgspec.convert(found, Scale)
        except msgspec.ValidationError as error:
            raise DynamodError(f"the scale of {target} cannot be read: {error}") from None
        return Replicas(scale.spec.replicas, scale.status.replicas)

    async def scale(self, target: str, replicas: int) -> None:
        """Write how many there are to be; does not wait for pods."""
        kind, name = workload(target)
        async with Api(self._server) as api:
            await api.merge(kind, name, {"spec": {"replicas": replicas}})


def workload(target: str) -> tuple[Kind, str]:
    """The kind and the name of `statefulset/NAME`; a name alone is that of a Deployment. Raises UserError."""
    word, _, name = target.rpartition("/")
    word = word or "deployment"
    if word not in SCALES:
        raise UserError(f"{target!r} is no workload: unknown kind '{word}'", known_hint(word, SCALES, "kinds"))
    return SCALES[word], name
