"""`dynamo doctor`: looks at what serving needs, and says how to mend what is wrong. Changes nothing."""

import asyncio
import contextlib
import os
import resource
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET

from dynamod import __version__
from dynamod.actor import Actor, System
from dynamod.cli.client import Control
from dynamod.control.answers import ClusterStatus, GraphStatus
from dynamod.control.table import METRICS, STATUS
from dynamod.daemon.cluster import cluster_of
from dynamod.daemon.port_owner import port_owner, port_problem
from dynamod.discovery.etcd.settings import Endpoint, EtcdSettings
from dynamod.discovery.keys import CARDS, INSTANCES, SHARED
from dynamod.discovery.records import decoded
from dynamod.discovery.view import disagree
from dynamod.extension.command import NoArguments
from dynamod.extension.installed import extensions
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.node import FromNode, Hello, Snapshot, Watch, Welcome
from dynamod.message.protocol import PROTOCOL
from dynamod.runtime.paths import choose_socket, link_path, socket_candidates
from dynamod.runtime.release import check_release
from dynamod.transport.channel import Channel
from dynamod.transport.nats.settings import NatsSettings

T = TypeVar("T")
State = Literal["ok", "warn", "fail"]
FILES = 4096
"""Open files that a node with a thousand streams needs."""
SKIPPED = {
    "dynamod_messages_unknown_total": "messages of unknown kinds or with unknown fields",
    "dynamod_records_ignored_total": "registry values that cannot be read",
    "dynamod_records_unknown_fields_total": "unknown fields of registry values",
}
"""Metrics of what was skipped because it is newer, or damaged."""
SKEW = 2.0
"""Seconds between two clocks above which times in logs mislead."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `mend` says what to do, empty when all is well."""

    check: str
    state: State
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What the running daemon says of itself, and what its registry holds, by place."""

    daemon: Welcome
    cards: Mapping[str, ModelCard]
    instances: Mapping[str, Instance]


async def examine(explicit: str | None, ports: Sequence[int], environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """All checks, one after the other, each within seconds."""
    yield limits()
    yield place(explicit)
    for candidate in socket_candidates(explicit):
        try:
            check_release(candidate)
        except UserError as error:
            yield Finding("daemon", "fail", str(error), error.hint)
            return
    known = await running(explicit)
    yield daemon(known)
    for port in ports:
        yield free(port, known is not None)
    if known is None:
        async for finding in cluster_here(environ):
            yield finding
        return
    try:
        status = (await asyncio.to_thread(Control(explicit).ask, STATUS, NoArguments())).value
    except UserError as error:
        yield Finding("daemon", "fail", error.line(), "see dynamo logs, or restart the daemon")
    else:
        for problem in status.problems:
            yield Finding("health", "fail", problem.found, problem.mend)
        for finding in graphs(status.graphs):
            yield finding
        async for finding in cluster_of_daemon(known, status.cluster, environ):
            yield finding
        with contextlib.suppress(UserError):  # a daemon that cannot be asked has its own finding
            yield newer_nodes((await asyncio.to_thread(Control(explicit).ask, METRICS, NoArguments())).value)
    async for finding in workers(known):
        yield finding
    for more in extensions("doctor"):
        async for finding in more(explicit):
            yield finding


def graphs(found: Sequence[GraphStatus]) -> Iterator[Finding]:
    """What each graph serves, as `dynamo status` says it; what it lacks is among the problems."""
    for graph in found:
        if graph.models:
            yield Finding("models", "ok", f"graph {graph.name} serves {', '.join(graph.models)}")
        elif graph.models is not UNSET and not graph.error:
            mend = "" if graph.ready else "wait until it is ready, see dynamo status"
            yield Finding("models", "ok" if graph.ready else "warn", f"graph {graph.name} serves no model", mend)


def newer_nodes(metrics: str) -> Finding:
    """What nodes of a newer release have sent and this one has skipped, as the node's metrics count it."""
    found: list[str] = []
    for name, what in SKIPPED.items():
        lines = [line for line in metrics.splitlines() if line.startswith(f"{name}{{")]
        if count := round(sum(float(line.rpartition("}")[2].split()[0]) for line in lines)):
            found.append(f"{what} {count} times")
    if found:
        text = f"processes of this node have skipped {', '.join(found)}; see dynamo logs"
        return Finding("releases", "warn", text, "upgrade this node, if others run a newer release")
    return Finding("releases", "ok", "nothing came that this release does not know")


async def cluster_here(environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """The servers that a daemon would join if it was started here and now."""
    try:
        cluster = await asyncio.to_thread(cluster_of, environ)
    except UserError as error:
        yield Finding("cluster", "fail", str(error), error.hint or "correct the variable")
        return
    if cluster.etcd is None and not cluster.nats:
        yield Finding("cluster", "ok", "this node is alone (no ETCD_ENDPOINTS, no NATS_SERVER, none found here)")
    if cluster.etcd is not None:
        for finding in together([await _etcd(endpoint, cluster.etcd) for endpoint in cluster.etcd.endpoints]):
            yield finding
    async for finding in nats_servers(cluster.nats):
        yield finding
    if cluster.etcd is not None and not cluster.nats:
        found = "NATS_SERVER is not set and ETCD_ENDPOINTS is: workers of other nodes are seen, not reached"
        yield Finding("nats", "warn", found, "set NATS_SERVER to the server of the other nodes")
    if cluster.nats and not cluster.joined:
        yield Finding("etcd", "warn", "only static workers of other nodes are reached", "set ETCD_ENDPOINTS")


async def cluster_of_daemon(
    known: Known, facts: ClusterStatus | None, environ: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """The servers that the daemon has joined. Its credentials for etcd are not known here, those for NATS are."""
    if facts is None:
        named = environ.get("ETCD_ENDPOINTS") or environ.get("NATS_SERVER")
        found = f"the daemon runs alone{f', though the environment here names {named}' if named else ''}"
        yield Finding("cluster", "warn" if named else "ok", found, "restart the daemon" if named else "")
        return
    if facts.connected:  # what it has lost is among its problems
        yield Finding("etcd", "ok", f"the daemon is connected to etcd at {facts.etcd}")
    async for finding in nats_servers(known.daemon.cluster):
        yield finding


def limits() -> Finding:
    """Open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files (hard limit {hard})"
    if 0 <= soft < FILES:
        return Finding("limits", "warn", text, f"ulimit -n {FILES}, or LimitNOFILE= in the unit")
    return Finding("limits", "ok", text)


def place(explicit: str | None) -> Finding:
    """The control socket's folder: whether this user may create it, and which other users may."""
    try:
        path = choose_socket(explicit)
    except UserError as error:
        return Finding("socket", "fail", str(error), error.hint)
    mode = path.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        mend = f"chmod o-w {path.parent}, or name another with --socket"
        return Finding("socket", "fail", f"every user may replace files in {path.parent}", mend)
    return Finding("socket", "ok", f"{path} can be used")


def free(port: int, running_here: bool) -> Finding:
    """Whether a frontend could listen."""
    why = port_problem("127.0.0.1", port)
    if not why:
        return Finding("ports", "ok", f"port {port} is free")
    by = f", by {owner}" if (owner := port_owner(port)) else ""
    if running_here:
        return Finding("ports", "ok", f"port {port}: {why}{by or ' (perhaps by the frontend that runs)'}")
    return Finding("ports", "warn", f"port {port}: {why}{by}", "stop what listens there, or choose --Frontend.port")


def daemon(known: Known | None) -> Finding:
    """The running daemon and its version."""
    if known is None:
        return Finding("daemon", "ok", "none runs (dynamo serve and dynamo-run need none)")
    text = f"node {known.daemon.node} runs dynamod {known.daemon.version or 'of an unknown version'}"
    if known.daemon.version != __version__:
        return Finding("daemon", "warn", f"{text}, this command is {__version__}", "restart the daemon")
    return Finding("daemon", "ok", text)


async def nats_servers(variables: Mapping[str, str]) -> AsyncIterator[Finding]:
    """The NATS servers that variables name; none without NATS_SERVER."""
    settings = NatsSettings.from_environment(variables)
    for finding in together([await _nats(server, settings) for server in settings.servers]) if settings else ():
        yield finding


def together(findings: Sequence[Finding]) -> list[Finding]:
    """Of several servers one that answers will do: then what is wrong with others is only to be looked at."""
    if all(finding.state == "fail" for finding in findings):
        return list(findings)
    return [msgspec.structs.replace(one, state="warn") if one.state == "fail" else one for one in findings]


async def _etcd(endpoint: Endpoint, settings: EtcdSettings) -> Finding:
    from dynamod.discovery.etcd.probe import advised_against, probe

    told = await probe(str(endpoint), 2.0, settings)
    if told is None:
        why = await _refusal(endpoint, settings)
        files = "ETCD_AUTH_CA, ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY" if endpoint.tls else "ETCD_AUTH_CA"
        mend = f"start it (dynamo infra up, or your cluster's), or correct ETCD_ENDPOINTS and {files}"
        return Finding("etcd", "fail", f"{endpoint} does not answer as etcd{f' ({why})' if why else ''}", mend)
    text = f"{endpoint} is etcd {told['version']}, answered in {told['seconds'] * 1000:.0f} ms"
    if not told["healthy"]:
        return Finding("etcd", "fail", f"{text}, and is not healthy", "see etcdctl endpoint health; has it a leader?")
    if why := await _refusal(endpoint, settings):
        user = "the user of ETCD_AUTH_USERNAME" if settings.username else "a node without ETCD_AUTH_USERNAME"
        mend = f"correct ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD; the user has to read and write keys under {SHARED}"
        return Finding("etcd", "fail", f"{endpoint} refuses {user}: {why}", mend)
    if why := advised_against(told["version"]):
        return Finding("etcd", "warn", f"{endpoint}: {why}", "use it for trying only, or install a later etcd")
    skew = told.get("skew")
    if skew is not None and abs(skew) > SKEW:
        mend = "set the clocks by NTP: leases do not depend on them, but times in logs and answers do"
        return Finding("clocks", "warn", f"{text}; its clock differs by {skew:+.0f} s", mend)
    return Finding("etcd", "ok", text)


async def _refusal(endpoint: Endpoint, settings: EtcdSettings) -> str:
    """Why a node could not do there what it has to, empty when it can: the probe needs no user."""
    from dynamod.discovery.etcd.client import connect
    from dynamod.discovery.etcd.errors import EtcdError

    try:
        async with connect(endpoint, settings) as client:
            await client.ping(SHARED)
            await client.delete(f"{SHARED}doctor", 1)  # nothing hangs on lease 1, but the right to write is asked for
    except EtcdError as error:
        return str(error)
    except UserError as error:
        return error.line()
    return ""


async def _nats(server: str, settings: NatsSettings) -> Finding:
    from dynamod.transport.nats import client as nats_client

    problems: list[Exception] = []

    async def hear(error: Exception) -> None:
        problems.append(error)

    client = nats_client.new_client()
    try:
        options = nats_client.options(settings, client, "doctor", [server])
        async with asyncio.timeout(5.0):
            try:
                once = {"allow_reconnect": False, "max_reconnect_attempts": 1, "error_cb": hear}
                await client.connect(**{**options, **once})
                if settings.tls and not nats_client.offers_tls(client):
                    raise ConnectionRefusedError("the server offers no TLS")
                begun = time.monotonic()
                await client.flush(2)
                took = (time.monotonic() - begun) * 1000
                size = client.max_payload
            finally:
                await client.close()
    except Exception as error:
        why = next(filter(nats_client.distrusts, problems), problems[0] if problems else error)
        if nats_client.refuses_credentials(why):
            of = settings.credentials
            text = f"refuses the credentials of {of}" if of else "wants credentials"
            return Finding("nats", "fail", f"{server} {text}", "set NATS_AUTH_USERNAME and others to what it knows")
        mend = "start it (dynamo infra up, or your cluster's), or correct NATS_SERVER and NATS_TLS_*"
        return Finding("nats", "fail", f"{server}: {nats_client.plain(why)}", mend)
    return Finding("nats", "ok", f"{server} answered in {took:.1f} ms, takes messages of {size // 1024} KiB")


async def workers(known: Known) -> AsyncIterator[Finding]:
    """Every model's worker: whether it answers, and whether its tokenizer is that of the files here."""
    from dynamod.ingress.static_workers import describe
    from dynamod.runtime.transports import TransportSelector

    async with System() as system:
        owner = Actor()  # of the connections
        await system.ready(system.start("doctor", lambda: owner, restart="temporary"), timeout=5)
        transport = TransportSelector(
            "doctor",
            "",
            lambda path, _request, reply: reply.failed("NotFound", f"{path} is not served here"),
            owner.context.task,
        )
        transport.welcome(known.daemon)
        try:
            if transport.connection is not None:
                await transport.connection.ready(2.0)
            first: dict[str, tuple[str, ModelCard]] = {}
            for place, card in sorted(known.cards.items()):
                if (instance := known.instances.get(place)) is None:
                    continue
                worker = f"{instance.process or place} on {instance.node} ({card.name})"
                other, known_card = first.setdefault(card.name, (worker, card))
                if disagree(card, known_card):
                    text = (
                        f"{worker} and {other} differ in tokenizer, template or context length: requests go to one kind"
                    )
                    yield Finding("workers", "fail", text, "give both the same files and settings, or one another name")
                begun = time.monotonic()
                if await describe(transport, instance) is None:
                    mend = f"see dynamo ps and dynamo logs on {instance.node}"
                    if instance.node != known.daemon.node and transport.connection is None:
                        mend = "set NATS_SERVER for the daemon here: that node is only reached over NATS"
                    yield Finding("workers", "fail", f"{worker} does not answer", mend)
                    continue
                yield Finding("workers", "ok", f"{worker} answers in {(time.monotonic() - begun) * 1000:.1f} ms")
                if (finding := await asyncio.to_thread(tokenizer, card)) is not None:
                    yield finding
        finally:
            await transport.close()


def tokenizer(card: ModelCard) -> Finding | None:
    """Whether what turns text into tokens here is what the worker has; None for text engines and files elsewhere."""
    from dynamod.preprocess.model_files import same_model
    from dynamod.preprocess.source import open_source
    from dynamod.preprocess.tokenizer import Tokenizer

    if card.kind != "tokens" or not Path(card.path).exists():
        return None
    described = Path(card.config_path or card.path)
    try:
        if not same_model(described, card):
            text = f"{card.path} has changed since the worker of {card.name} read it"
            return Finding("tokenizer", "fail", text, "restart the worker, or give both the same files")
        found = Tokenizer.from_source(open_source(described))
    except UserError as error:
        return Finding("tokenizer", "fail", f"{card.name}: {error}", error.hint)
    if found.backend == "tokenizers":
        mend = "nothing is wrong; prompts just take longer"
        return Finding("tokenizer", "warn", f"{card.name}: the fast encoder does not give the same tokens", mend)
    return Finding("tokenizer", "ok", f"{card.name}: {found.backend} and the reference give the same tokens")


async def running(explicit: str | None) -> Known | None:
    """Ask the daemon that holds the node what its registry has; None when none answers."""
    for candidate in socket_candidates(explicit):
        with contextlib.suppress(OSError, TimeoutError, EOFError, msgspec.MsgspecError, ValueError):
            async with asyncio.timeout(2.0):
                return await _ask(str(link_path(candidate)))
    return None


async def _ask(path: str) -> Known:
    messages: asyncio.Queue[FromNode | None] = asyncio.Queue()
    channel = Channel(messages.put_nowait, closed=lambda: messages.put_nowait(None))
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, path)
    hello = Hello("doctor", os.getpid(), version=__version__, protocol=PROTOCOL)
    for message in (hello, Watch(1, CARDS), Watch(2, INSTANCES)):
        channel.send(message)
    snapshots, welcome = dict[int, dict[str, bytes]](), Welcome(0, "")
    try:
        while len(snapshots) < 2:
            match await messages.get():
                case Welcome() as welcome:
                    pass
                case Snapshot(number, items):
                    snapshots[number] = dict(items)
                case None:
                    raise EOFError
                case _:
                    pass
    finally:
        channel.close()
    return Known(welcome, _read(CARDS, snapshots[1], ModelCard), _read(INSTANCES, snapshots[2], Instance))


def _read(prefix: str, items: Mapping[str, bytes], kind: type[T]) -> dict[str, T]:
    found = {key.removeprefix(prefix): decoded(key, value, kind) for key, value in items.items()}
    return {place: record for place, record in found.items() if record is not None}
