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
import signal
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


def keep(connection: socket.socket) -> None:
    """Run one command in a fork of its own, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, given, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while more := connection.recv(1 << 20):
        text += more
    request = json.loads(text)
    pid = os.fork()
    if not pid:
        connection.close()
        command(request, given)
    for descriptor in given:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # nobody waits any more: it took too long
        connection.sendall(f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


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
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that keep a command
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            connection, _ = listener.accept()
            if not os.fork():
                selector.close()
                listener.close()
                keep(connection)
            connection.close()


if __name__ == "__main__":
    serve(sys.argv[1], core=sys.argv[3] == "core")
