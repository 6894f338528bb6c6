"""Real commands in real processes: a `Machine` is a folder with a control socket, and all that was started there.

Test modules cannot import this file, so what they need hangs on the machine. When a machine is closed everything
that it saw running must be gone, its ports free and its folder removable: nothing may be left behind.
"""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dynamod.cli.client import _Unix

from ..ports import free_port
from .asking import Begun, Streaming, chat_body, request_of
from .command import SLOW, Command, until
from .forks import ENTRIES
from .nodes import Servers
from .processes import Pid, described, named_after, tree
from .result import Result
from .together import play
from .warm import Started, Warm, warm

ROOT = Path(__file__).parents[2]
ENTRY = {
    "dynamo": ["-c", "from dynamod.cli.main import dynamo; dynamo()"],
    "dynamod": ["-c", "from dynamod.cli.main import dynamod; dynamod()"],
    "dynamo-run": ["-c", "from dynamod.cli.main import dynamo_run; dynamo_run()"],
    **{f"dynamo.{name}": ["-m", f"dynamo.{name}"] for name in ("frontend", "mocker", "echo", "mistralrs")},
}
AGG = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")
C = TypeVar("C", bound=contextlib.AbstractContextManager[Any])


CLIENTS = 32768
"""From here on the kernel chooses ports, for servers that listen on port 0 as for clients."""


class Machine:
    """A folder, a control socket in it, and commands that use them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dm-", dir="/tmp"))  # short: socket paths are limited
        self.socket = self.folder / "d.sock"
        self.python = sys.executable
        self.env: dict[str, str] = {}
        self.forks: Warm | None = None
        """What commands are forked from; None: from the process that has imported this tree."""
        self.commands: list[Command] = []
        self._at_terminals: list[subprocess.Popen[bytes] | Started] = []
        self.ports: set[int] = set()
        self.daemons: set[Pid] = set()
        self._opened = contextlib.ExitStack()
        self.until = until
        self.tree = tree

    # Commands.

    def find_daemons(self) -> set[Pid]:
        """The processes that hold nodes of this machine now, as the node locks say."""
        # os.walk, because a daemon that ends removes folders meanwhile, at which Path.rglob raises.
        locks = [Path(at, name) for at, _, names in os.walk(self.folder) for name in names if name.endswith(".lock")]
        numbers = []
        for lock in locks:
            with contextlib.suppress(FileNotFoundError):
                numbers.append(lock.read_text().partition("\n")[0])
        found = {daemon for number in numbers if number and (daemon := Pid.of(int(number))) is not None}
        self.daemons |= found
        return found

    def daemon(self) -> Pid:
        """The process that holds the node at the usual socket."""
        number = until(lambda: int(self.socket.with_name("d.sock.lock").read_text().partition("\n")[0] or 0))
        daemon = Pid.of(number)
        assert daemon is not None
        return daemon

    def shared_by_others(self, command: Command) -> bool:
        """Whether other commands run that may use the same daemon."""
        return any(other.code is None for other in self.commands if other is not command)

    def environ(self, **env: str) -> dict[str, str]:
        """The environment of a command: ours, this machine's, and `env`."""
        return {**self._environ(), **self.env, **env}

    def _environ(self) -> dict[str, str]:
        """Ours, but with this machine's socket and the checkout on the path."""
        dropped = re.compile(
            "DYN|NATS_|ETCD_|NOTIFY_|STATE_|RUNTIME_|LOGS_|CUDA_|COLUMNS|LINES|PYTHONUNBUFFERED|PYTHONWARNINGS"
        )
        clean = {key: value for key, value in os.environ.items() if not dropped.match(key)}
        path = os.pathsep.join([str(ROOT), str(ROOT / "dynamod/compat"), *filter(None, [clean.get("PYTHONPATH")])])
        return {**clean, "PYTHONPATH": path, "DYNAMOD_SOCKET": str(self.socket), "DYNAMOD_CLUSTER": "off"}

    def start(
        self,
        command: str,
        *argv: object,
        cwd: Path | None = None,
        deaf: bool = False,
        within: str = "",
        prefix: Sequence[str] = (),
        fresh: bool = False,
        **env: str,
    ) -> Command:
        """Start a command. `deaf`: its output has no reader. `within`: a network namespace. `prefix`: words before.

        `fresh`: in an interpreter of its own, as a user would; also the first command of each kind.
        """
        if forks := None if within or prefix or fresh else self._forks([command, *map(str, argv)], env):
            words, environ = [command, *map(str, argv)], self.environ(**env)
            started = Command(self, words, environ, cwd or self.folder, deaf=deaf, forks=forks, words=words[1:])
            self.commands.append(started)
            return started
        words = [*prefix, self.python, *(ENTRY.get(command) or ["-m", command]), *map(str, argv)]
        if within:
            words = ["ip", "netns", "exec", within, *words]
        started = Command(self, words, self.environ(**env), cwd or self.folder, deaf=deaf, words=[*map(str, argv)])
        self.commands.append(started)
        return started

    def script(self, text: str, *argv: object, name: str = "script", fresh: bool = False, **env: str) -> Command:
        """Start a plain Python file with this text; `name` is the file's, without `.py`. `fresh`: as with `start`."""
        file = self.folder / f"{name}.py"
        file.write_text(text)
        words, environ = [str(file), *map(str, argv)], self.environ(**env)
        if forks := None if fresh else self._forks(words, env):
            started = Command(self, words, environ, self.folder, forks=forks)
        else:
            started = Command(self, [sys.executable, *words], environ, self.folder)
        self.commands.append(started)
        return started

    def terminal(
        self, command: str, *argv: object, size: tuple[int, int] | None = None, **env: str
    ) -> tuple[int, "subprocess.Popen[bytes] | Started"]:
        """Start a command at a terminal of its own, of so many rows and columns; our end of it, and the process."""
        words, environ = [command, *map(str, argv)], self.environ(**env)
        ours, theirs = pty.openpty()
        process: subprocess.Popen[bytes] | Started
        if size is not None:
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        try:
            if forks := self._forks(words, env):
                process = forks.start(words, environ, self.folder, theirs, theirs, stdin=theirs)
            else:
                process = subprocess.Popen(
                    [self.python, *ENTRY[command], *words[1:]],
                    stdin=theirs,
                    stdout=theirs,
                    stderr=theirs,
                    env=environ,
                    cwd=self.folder,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                )
            self._at_terminals.append(process)
            return ours, process
        finally:
            os.close(theirs)

    def run(
        self,
        command: str,
        *argv: object,
        seconds: float = SLOW,
        cwd: Path | None = None,
        text: str | None = None,
        **env: str,
    ) -> Result:
        """Run a command to its end; other names are those of modules. `text` comes through a pipe."""
        words, environ, folder = [command, *map(str, argv)], self.environ(**env), cwd or self.folder
        if forks := self._forks(words, env):
            return Result(*forks.run(words, environ, folder, seconds, text))
        done = subprocess.run(
            [self.python, *(ENTRY.get(command) or ["-m", command]), *words[1:]],
            **({"stdin": subprocess.DEVNULL} if text is None else {"input": text.encode()}),
            capture_output=True,
            env=environ,
            cwd=folder,
            timeout=seconds,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _forks(self, words: Sequence[str], env: Mapping[str, str]) -> Warm | None:
        """The process that such a command or file can be forked from, unless it is the first of its kind."""
        if self.python != sys.executable or not (
            words[0] in ENTRIES or words[0].startswith("dynamo.") or words[0].endswith(".py")
        ):
            return None
        forks = self.forks or warm(self._environ())
        return forks if forks.knows(words, self.environ(**env)) else None

    def batch(self, cases: Sequence[tuple[str, Sequence[str]]]) -> list[Result]:
        """Run many commands that end at once, some at the same time; each has a control socket of its own."""
        forks = warm(self._environ())

        def one(number: int, command: str, argv: Sequence[str]) -> Result:
            environ = self.environ(DYNAMOD_SOCKET=str(self.folder / f"{number}.sock"))
            return Result(*forks.run([command, *argv], environ, self.folder, SLOW))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [done.result() for done in [pool.submit(one, n, *case) for n, case in enumerate(cases)]]

    def agg(self, *argv: object, deaf: bool = False, fresh: bool = False, **env: str) -> Command:
        """Start `dynamo serve` of the shipped graph with the echo engine on a free port."""
        return self.start("dynamo", *AGG, *argv, deaf=deaf, fresh=fresh, **env)

    # The control socket.

    def raw(
        self, method: str, path: str, body: Any = None, *, socket_path: Path | None = None, seconds: float = SLOW
    ) -> tuple[int, Any]:
        """What curl --unix-socket does: status and JSON."""
        text = body if isinstance(body, str) else json.dumps(body) if body is not None else None
        connection = _Unix(socket_path or self.socket, seconds)
        try:
            connection.request(method, path, text)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def unix(self, seconds: float = SLOW, socket_path: Path | None = None) -> http.client.HTTPConnection:
        """An HTTP connection over the control socket."""
        return _Unix(socket_path or self.socket, seconds)

    def raw_status(self) -> int:
        """Pid of the process that answers at the control socket; 0 when none does."""
        try:
            return int(self.raw("GET", "/v1/status")[1]["pid"])
        except OSError:
            return 0

    def ps(self, component: str = "") -> list[dict[str, Any]]:
        """Rows of `ps`, of one component or all; none while nobody answers."""
        try:
            status, rows = self.raw("GET", "/v1/ps")
        except OSError:
            return []
        assert status == 200, rows
        return [row for row in rows if component in ("", row["component"])]

    def row(self, component: str) -> dict[str, Any]:
        """The only row of a component."""
        (row,) = self.ps(component)
        return row

    # The frontend.

    def ask(self, url: str, path: str, body: Any = None, seconds: float = SLOW) -> tuple[int, str]:
        """GET, or POST of a JSON body; status and text."""
        connection = self._connect(url, seconds)
        try:
            connection.request(*request_of(path, body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def answers(self, url: str, path: str) -> int:
        """Status of a GET; 0 when nobody listens."""
        try:
            return self.ask(url, path)[0]
        except OSError:
            return 0

    def serves(self, url: str) -> bool:
        """Whether the sample model can be asked for."""
        try:
            return '"sample"' in self.ask(url, "/v1/models")[1]
        except OSError:
            return False

    def chat(self, url: str, text: str, **fields: Any) -> str:
        """A unary chat with the sample model; returns the answer's text."""
        status, answer = self.ask(url, "/v1/chat/completions", chat_body(text, **fields))
        assert status == 200, answer
        content: str = json.loads(answer)["choices"][0]["message"]["content"]
        return content

    def chats(self, url: str, texts: Sequence[str], **fields: Any) -> list[str]:
        """Answers of chats at the same time."""
        with ThreadPoolExecutor(len(texts)) as pool:
            return list(pool.map(lambda text: self.chat(url, text, **fields), texts))

    def stream(self, url: str, text: str, **fields: Any) -> "Streaming":
        """A streaming chat whose first words have come."""
        return Streaming(self._connect(url, SLOW), chat_body(text, stream=True, **fields))

    def begin(self, url: str, text: str, *, request: str, **fields: Any) -> "Begun":
        """A unary chat that is on its way, with a request id of its own."""
        return Begun(self._connect(url, 60), chat_body(text, **fields), request)

    def free(self, url: str) -> bool:
        """Whether nobody listens on the port of a URL, so that another may."""
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("0.0.0.0", int(url.rpartition(":")[2])))
            except OSError:
                return False
            return True

    def port(self) -> int:
        """A port that was free a moment ago, and that no client is given as its own."""
        return free_port()

    def _connect(self, url: str, seconds: float) -> http.client.HTTPConnection:
        port = int(url.rpartition(":")[2])
        self.ports.add(port)
        return http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def closing(self, opened: C) -> C:
        """A client of an API that is closed with the machine: an open socket would be a warning in a later test."""
        self._opened.enter_context(opened)
        return opened

    def close(self) -> None:
        """End what runs; then nothing may be left."""
        self._opened.close()
        for process in self._at_terminals:  # of a test that failed
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        faults = []
        for command in reversed(self.commands):
            if command.code is None:
                try:
                    command.end()
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    faults.append(f"{error}\n{command.err[-3000:]}")
        self.find_daemons()
        until(lambda: not any(pid.lives for pid in self.daemons), 5.0, f"the end of the daemons {self.daemons}")
        for command in self.commands:
            try:
                command.gone(5.0)  # a daemon that came second to the node ends on its own
            except AssertionError:
                left = [described(pid.pid) for pid in command.seen if pid.lives]
                faults.append(f"left behind by {command._popen.args}: {left}")
            command.kill()
        # The kernel may have given the others to somebody else by now.
        own = [port for port in self.ports if port < CLIENTS]
        faults += [f"port {port} is not free" for port in own if not self.free(f":{port}")]
        try:
            until(lambda: not named_after(str(self.folder)), 5.0)
        except AssertionError:
            faults.append(f"processes are left behind: {named_after(f'{self.folder}/')}")
        shutil.rmtree(self.folder)
        assert not faults, "\n".join(faults)


def _machine() -> Iterator[Machine]:
    machine = Machine()
    try:
        yield machine
    finally:
        machine.close()


machine = pytest.fixture(_machine, name="machine")
shared = pytest.fixture(_machine, name="shared", scope="module")


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> dict[str, "Future[None]"]:
    """What came of the tests of the module that are played `together`."""
    return play(request, Machine)


@pytest.fixture
def one_thread(machine: Machine) -> None:
    """Engines in Rust compute with one thread."""
    machine.env["RAYON_NUM_THREADS"] = "1"


@pytest.fixture
def servers(machine: Machine) -> Iterator[Servers]:
    """A NATS and an etcd of its own."""
    started = Servers(machine)
    yield started
    started.down()


@pytest.fixture(scope="module")
def shared_servers(shared: Machine) -> Iterator[Servers]:
    """A NATS and an etcd for all tests of a module."""
    started = Servers(shared)
    yield started
    started.down()
