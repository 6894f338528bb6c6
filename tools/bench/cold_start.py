#!/usr/bin/env python3
"""From starting `dynamo serve` to its first complete answer: seconds, CPU seconds, memory of the worker.

cold_start.py [--runs 5] [--engine echo_core] [--model sample] [--llama-server PATH]

`--llama-server` starts llama.cpp's own server with the same GGUF file in turn; `llama_servers.py` says how to build it.
CPU time is that of all processes. Memory is the proportional set size (PSS) after the first answer.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)

from dynamod.observe.memory import proportional  # noqa: E402
from dynamod.preprocess.locate import locate  # noqa: E402


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def ask(port: int, model: str, key: str = "") -> bool:
    """One unary request, with a key if one is given; False while nobody answers it."""
    body = json.dumps(
        {"model": model, "max_tokens": 1, "ignore_eos": True, "messages": [{"role": "user", "content": "Hello"}]}
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(head.encode() + body)
            return sock.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Start:
    """One start: wall and CPU seconds, and the PSS in MB of the process with the model."""

    wall: float
    cpu: float
    memory: float


def processes(mark: str) -> list[int]:
    """The processes whose environment has this text."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def spent(pid: int) -> float:
    """CPU seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def one(command: Sequence[str], port: int, model: str, holds: str) -> Start:
    """Start, wait for an answer, stop. `holds`: part of the command line of the process with the model."""
    folder = tempfile.mkdtemp()
    env = {**os.environ, "DYNAMOD_SOCKET": f"{folder}/d.sock", "DYN_TOKEN_ECHO_DELAY_MS": "0"}
    env["PYTHONPATH"] = os.pathsep.join([ROOT, env.get("PYTHONPATH", "")])
    begin = time.perf_counter()
    server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ask(port, model):
            if server.poll() is not None or time.perf_counter() - begin > 60:
                raise SystemExit(f"{command[0]} did not start")
            time.sleep(0.005)
        wall, pids = time.perf_counter() - begin, processes(folder)
        (worker,) = [pid for pid in pids if holds.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return Start(wall, sum(map(spent, pids)), (proportional(worker) or 0) / 1e6)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def ours(engine: str, model: str) -> Start:
    """A start of dynamod."""
    port = free_port()
    command = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()", "serve", "-f", "configs/agg.yaml"]
    command += [f"--Worker.engine={engine}", f"--Worker.model={model}"]
    command += ["--Worker.served-model-name=bench", f"--Frontend.port={port}"]
    return one(command, port, "bench", "Worker.0")


def theirs(program: str, model: str) -> Start:
    """A start of llama-server."""
    port = free_port()
    return one([program, "-m", model, "--host", "127.0.0.1", "--port", str(port)], port, "bench", program)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--engine", default="echo_core")
    parser.add_argument("--model", default="sample")
    parser.add_argument("--llama-server", default="", help="program to start in turn, with the same GGUF file")
    a = parser.parse_args()
    model = os.path.abspath(a.model) if os.path.exists(a.model) else a.model
    starts: dict[str, Callable[[], Start]] = {a.engine: lambda: ours(a.engine, model)}
    if a.llama_server:
        starts["llama-server"] = lambda: theirs(a.llama_server, str(locate(model)))
    for start in starts.values():
        start()  # fills the caches
    found: dict[str, list[Start]] = {name: [] for name in starts}
    for _ in range(a.runs):
        for name, start in starts.items():
            found[name].append(start())
    for name, values in found.items():
        wall = [value.wall for value in values]
        print(
            f"{name} runs={a.runs} seconds min={min(wall):.2f} median={statistics.median(wall):.2f} "
            f"max={max(wall):.2f} "
            f"cpu={statistics.median(value.cpu for value in values):.2f} s "
            f"memory={statistics.median(value.memory for value in values):.0f} MB"
        )


if __name__ == "__main__":
    main()
