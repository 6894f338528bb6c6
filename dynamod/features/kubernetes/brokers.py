"""etcd and NATS for the pods of a manifest, with the meaning of the chart's values; checks of the flags (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynamod.discovery.etcd.settings import Endpoint
from dynamod.message.errors import UserError
from dynamod.transport.nats.settings import NatsSettings

KUBERNETES, ETCD = DISCOVERY = ("kubernetes", "etcd")
TCP, NATS = REQUESTS = ("tcp", "nats")
FOLDER = "/etc/dynamod"
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """`address`: as the variable of its clients takes it. `auth`, `tls`: names of secrets; empty: there is none.

    `auth` has the keys username and password, `tls` has ca.crt, tls.crt and tls.key.
    """

    address: str = ""
    auth: str = ""
    tls: str = ""

    @property
    def given(self) -> bool:
        """Whether a flag names something of it."""
        return bool(self.address or self.auth or self.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """Which servers pods use. `etcd`: for discovery; None: the API server. `nats`: for requests; None: TCP."""

    etcd: Broker | None = None
    nats: Broker | None = None

    def env(self) -> list[Object]:
        """Variables of all pods."""
        found: list[Object] = []
        if self.nats is not None:
            found += _env(self.nats, "NATS_SERVER", "NATS_AUTH", f"{FOLDER}/nats", "NATS_TLS_{}", ("CA", "CERT", "KEY"))
        if self.etcd is not None:
            files = ("CA", "CLIENT_CERT", "CLIENT_KEY")
            found += _env(self.etcd, "ETCD_ENDPOINTS", "ETCD_AUTH", f"{FOLDER}/etcd", "ETCD_AUTH_{}", files)
        return found

    def _certificates(self) -> Iterator[tuple[str, str]]:
        for name, broker in (("etcd", self.etcd), ("nats", self.nats)):
            if broker is not None and broker.tls:
                yield name, broker.tls

    def mounts(self) -> list[Object]:
        """Where containers find the certificates of the servers."""
        return [{"name": name, "mountPath": f"{FOLDER}/{name}", "readOnly": True} for name, _ in self._certificates()]

    def volumes(self) -> list[Object]:
        """The volumes of these certificates."""
        return [{"name": name, "secret": {"secretName": secret}} for name, secret in self._certificates()]


def _env(broker: Broker, server: str, auth: str, folder: str, form: str, names: tuple[str, ...]) -> Iterator[Object]:
    yield {"name": server, "value": broker.address}
    if broker.auth:
        for key in ("username", "password"):
            source = {"secretKeyRef": {"name": broker.auth, "key": key}}
            yield {"name": f"{auth}_{key.upper()}", "valueFrom": source}
    if broker.tls:
        for name, file in zip(names, ("ca.crt", "tls.crt", "tls.key"), strict=True):
            yield {"name": form.format(name), "value": f"{folder}/{file}"}


def chosen(discovery: str, requests: str, etcd: Broker, nats: Broker) -> Brokers:
    """What the flags of `dynamo manifest` choose. Raises UserError that names the flag."""
    _check_choice("--discovery", discovery, DISCOVERY)
    _check_choice("--requests", requests, REQUESTS)
    _check_flags("--discovery", discovery, "etcd", "--etcd-endpoints", "etcd:2379", etcd)
    _check_flags("--requests", requests, "nats", "--nats-server", "nats://nats:4222", nats)
    if discovery == ETCD:
        _check_etcd(etcd)
    if requests == NATS:
        _check_nats(nats)
    return Brokers(etcd=etcd if discovery == ETCD else None, nats=nats if requests == NATS else None)


def _check_choice(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{flag} is {value!r}", f"one of: {', '.join(known)}")


def _check_flags(flag: str, value: str, kind: str, address: str, example: str, broker: Broker) -> None:
    if value == kind and not broker.address:
        raise UserError(f"{flag} {kind} needs {address}", f"for example {address} {example}")
    if value != kind and broker.given:
        named = address if broker.address else f"--{kind}-{'auth' if broker.auth else 'tls'}-secret"
        raise UserError(f"{named} has no effect with {flag} {value}", f"add {flag} {kind}, or leave {named} out")


def _check_etcd(etcd: Broker) -> None:
    try:
        members = [Endpoint.parse(text, tls=bool(etcd.tls)) for text in etcd.address.split(",") if text.strip()]
    except UserError as error:
        raise UserError(f"--etcd-endpoints: {error}", error.hint) from None
    if not members:
        raise UserError("--etcd-endpoints: no member is named", "for example etcd:2379")
    if etcd.tls and not any(one.tls for one in members):
        raise UserError("--etcd-tls-secret is given, and --etcd-endpoints has no TLS endpoint", "write https://")


def _check_nats(nats: Broker) -> None:
    try:
        found = NatsSettings.from_environment({"NATS_SERVER": nats.address})
    except UserError as error:
        raise UserError(f"--nats-server: {error}", error.hint) from None
    if found is None:
        raise UserError("--nats-server: no server is named", "for example nats://nats:4222")
    if found.username or found.token:
        hint = "create a secret with the keys username and password, and name it with --nats-auth-secret"
        raise UserError("--nats-server holds a password, which every reader of the manifest would see", hint)
