"""Runs commands and files of users, each in a fork of this process, which has imported what they would all wait for.

Not imported by tests but run, by `python -c` with the path of a socket, that of this file, and `core` or `all`: so
`sys.path` begins as that of a real command. One connection per command: it brings the request as JSON, and stdin,
stdout and stderr as file descriptors. It is answered with a line with the process id and one with the exit code. Ends
when its stdin is closed.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import socket
import sys
import termios
from collections.abc import Sequence
from typing import Any, NoReturn

ENTRIES = {"dynamo": "dynamo", "dynamod": "dynamod", "dynamo-run": "dynamo_run", "dynamo.frontend": "frontend"}
APART = (
    *(".compat", ".llamacpp", ".sglang", ".trtllm", ".vllm", ".planner.", ".replay.", ".role_switch."),
    *(".request_trace.otel", ".tracing."),
    "__main__",
)
"""In the names of modules that few processes import, some of them with a library that starts threads."""
TOO = ("encodings.idna", "fastokens", "minijinja", "tests.e2e.nursery", "tokenizers", "uvloop")
CONTROL = ("dynamod.features.planner.control", "dynamod.features.role_switch.control")
ASKING = (
    *("dynamod.cli.flags", "dynamod.cli.run", "dynamod.cli.worker"),
    *("dynamod.ingress.api.table", "dynamod.runtime.components.frontend"),
)
"""Modules of the core that ask at their import which features there are."""


def warm(core: bool) -> None:
    """Import everything but engines, and build what is built at the first use.

    `core`: only what does not depend on the features that there are and on DYNAMOD_FEATURES. Each command looks for
    features itself, and their folders may change from one command to the next.
    """
    import typer.main

    import dynamod
    import dynamod.cli.app
    import dynamod.graph.load

    typer.main.get_command = functools.cache(typer.main.get_command)  # the words of all commands are made here once
    apart = (*APART, ".features.", *ASKING) if core else APART
    load(dynamod.__path__, "dynamod.", apart)
    for name in (*TOO, *(() if core else CONTROL)):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    if core:
        assert not [name for name in sys.modules if name.startswith("dynamod.features.")]
        return
    stdout = os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    dynamod.cli.app.run(["serve", "--help"])
    dynamod.graph.load.load_graph(None, "configs/agg.yaml")
    sys.stdout.flush()
    os.dup2(stdout, 1)
    os.close(stdout)
    os.close(devnull)


def load(folders: Sequence[str], prefix: str, apart: Sequence[str]) -> None:
    """Import the modules in these folders, and below them, whose names have none of the parts that are `apart`."""
    for module in pkgutil.iter_modules(folders, prefix):
        if not any(part in module.name for part in apart):
            loaded = importlib.import_module(module.name)
            if module.ispkg:
                load(loaded.__path__, f"{module.name}.", apart)


class Server:
    """Forks a command per connection, and tells how each has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._selector = listener, selectors.DefaultSelector()
        self._running: dict[int, tuple[int, socket.socket]] = {}  # process and connection by the process's descriptor
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until stdin is closed."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    return
                if key.fileobj is self._listener:
                    self._begin(self._listener.accept()[0])
                else:
                    self._end(key.fd)

    def _begin(self, connection: socket.socket) -> None:
        text, given, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        while more := connection.recv(1 << 20):
            text += more
        if not text:  # the test has ended before it has sent its request
            connection.close()
            return
        request = json.loads(text)
        pid = os.fork()
        if not pid:
            connection.close()
            self._forget()
            command(request, given)
        for descriptor in given:
            os.close(descriptor)
        watch = os.pidfd_open(pid)
        self._running[watch] = pid, connection
        self._selector.register(watch, selectors.EVENT_READ)
        self._tell(connection, pid)

    def _end(self, watch: int) -> None:
        pid, connection = self._running.pop(watch)
        self._selector.unregister(watch)
        os.close(watch)
        self._tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        connection.close()

    def _tell(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # the test has ended, or waits no longer
            connection.sendall(f"{number}\n".encode())

    def _forget(self) -> None:
        """In a fork: close what belongs to the server."""
        self._selector.close()
        self._listener.close()
        for watch, (_, connection) in self._running.items():
            os.close(watch)
            connection.close()


def command(request: dict[str, Any], given: Sequence[int]) -> NoReturn:
    """Be the command. The processes that it forks have its name: the test finds them by that at its end."""
    with open("/proc/self/comm", "w") as file:
        file.write(request["name"])
    if request["session"]:
        os.setsid()
    for number, mine in enumerate(given):
        os.dup2(mine, number)
        os.close(mine)
    if request["session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    name, *argv = request["words"]
    sys.argv = ["-c", *argv]

    from dynamod.cli import main
    from dynamod.daemon.forked import finish
    from tests.e2e.nursery import install, install_for_file

    if name.endswith(".py"):
        sys.argv[0], sys.path[0] = name, os.path.dirname(name)
        install_for_file(request["name"], request["run"])
        finish(functools.partial(runpy.run_path, name, run_name="__main__"))
    install(request["name"], daemon=name == "dynamod")
    if name in ENTRIES:
        finish(getattr(main, ENTRIES[name]))
    finish(functools.partial(runpy.run_module, name, run_name="__main__", alter_sys=True))


def serve(path: str, core: bool) -> None:
    warm(core)
    gc.collect()
    gc.freeze()  # or each fork would look through it all at its end, and copy it by that
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        Server(listener).serve()


if __name__ == "__main__":
    serve(sys.argv[1], core=sys.argv[3] == "core")
