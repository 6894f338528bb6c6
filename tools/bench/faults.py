#!/usr/bin/env python3
"""What a client sees when the worker that serves it is killed or stopped, and how soon another has taken its request.

faults.py --client fault_client.py --model FOLDER [--peer dynamo_peer.sh --venv VENV] [--repeat 3]

Two mockers at a real engine's pace, eight streams of 300 tokens; after 1.5 s one mocker gets SIGKILL (or SIGSTOP).
`resent`: from the signal to the moment when the other worker had taken the moved requests, by the log's clock. Rows:
one node over unix sockets, three nodes over NATS with etcd (both started here), and the peer if it is given.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median

from streams import ROOT, Ours

sys.path.insert(0, ROOT)

from dynamod.features.infra import brokers as infra

TAKEN = re.compile(r"^(\S+Z) .*dynamod\.migration: request \S+ was taken by")


class Cluster:
    """A frontend and two workers, each on a node of its own."""

    def __init__(self, model: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.servers = infra.up(self.folder / "infra", nats_port=free(), etcd_port=free())
        self.commands: list[subprocess.Popen[str]] = []
        arguments = self.folder / "mocker.json"
        arguments.write_text(json.dumps({"speedup_ratio": 1}))
        self.port = free()
        self.log = self.folder / "one.log"
        self._run("one", "in=http", "out=auto", "--http-port", str(self.port))
        worker = ("in=dyn://bench", "out=mocker", model, "--model-name", "bench", "--extra-engine-args", str(arguments))
        for node in ("two", "three"):
            self._run(node, *worker)
        wait(lambda: len(self._health()) == 2)
        self.pids = [instance["pid"] for instance in self._health()]

    def _run(self, node: str, *words: str) -> None:
        (self.folder / node).mkdir()
        environ = {
            **os.environ,
            **infra.environment(self.servers),
            "DYNAMOD_NODE": node,
            "DYNAMOD_SOCKET": str(self.folder / node / "d.sock"),
            "PYTHONPATH": os.pathsep.join([ROOT, f"{ROOT}/dynamod/compat"]),
        }
        command = [sys.executable, "-c", "from dynamod.cli.main import dynamo_run; dynamo_run()", *words]
        with (self.folder / f"{node}.log").open("w") as log:
            self.commands.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=ROOT, text=True))

    def _health(self) -> list[dict[str, int]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                found: list[dict[str, int]] = json.load(answer)["instances"]
                return found
        except OSError:
            return []

    def said(self) -> str:
        """What the frontend's node has logged."""
        return self.log.read_text()

    def stop(self) -> None:
        """End all."""
        for command in self.commands:
            command.send_signal(signal.SIGINT)
        for command in self.commands:
            command.wait(15)
        infra.down(self.folder / "infra", purge=True)


class Node:
    """Frontend and two workers on one node."""

    def __init__(self, model: str) -> None:
        more = ["--Worker.ServiceArgs.workers=2", "--Worker.engine_args.speedup_ratio=1"]
        self.ours = Ours(model, 0, "mocker", more, "info")
        self.port = self.ours.server.port
        rows = json.loads(self._dynamo("ps", "--output", "json"))
        self.pids = [row["pid"] for row in rows if row["component"] == "Worker"]

    def _dynamo(self, *words: str) -> str:
        command = [*self.ours.dynamo(), *words]
        return subprocess.run(command, env=self.ours.env, cwd=ROOT, capture_output=True, text=True).stdout

    def said(self) -> str:
        """What the node has logged."""
        return self._dynamo("logs", "-n", "1000")

    def stop(self) -> None:
        """End it."""
        self.ours.stop()


def free() -> int:
    """A port below those that clients are given."""
    import random
    import socket

    while True:
        number = random.randrange(15_000, 30_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", number))
            except OSError:
                continue
            return number


def wait(condition: Callable[[], object], seconds: float = 40) -> None:
    """Until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("it did not start")
        time.sleep(0.1)


def client(script: str, port: int, *words: str) -> str:
    """One run of the load client."""
    command = [sys.executable, script, "--port", str(port), "--model", "bench", "--timeout", "40", *words]
    return subprocess.run(command, capture_output=True, text=True).stdout


def one(name: str, make: Callable[[], "Node | Cluster"], a: argparse.Namespace, number: int) -> None:
    """A row: `repeat` runs, each with new processes."""
    complete, identical, gaps, resent = [], [], [], []
    for _ in range(a.repeat):
        server = make()
        try:
            with tempfile.TemporaryDirectory() as folder:
                texts, at = f"{folder}/texts", f"{folder}/at"
                client(a.client, server.port, "--do", "true", "--save", texts)
                kill = f"date +%s.%N > {at}; kill -{number} {server.pids[0]}"
                told = client(a.client, server.port, "--do", kill, "--expect", texts)
                sent = float(Path(at).read_text())
            complete.append(re.search(r"complete=(\S+)", told)[1])  # type: ignore[index]
            identical.append(re.search(r"identical=(\S+)", told)[1])  # type: ignore[index]
            gaps.append(int(re.search(r"gap_ms_max=(\d+)", told)[1]))  # type: ignore[index]
            times = [
                datetime.fromisoformat(found[1]).timestamp()
                for found in map(TAKEN.match, server.said().splitlines())
                if found
            ]
            times = [moment - sent for moment in times if moment > sent]
            resent.append(max(times) * 1000 if times else float("nan"))
        finally:
            if number == signal.SIGSTOP:
                os.kill(server.pids[0], signal.SIGCONT)
            server.stop()
    waits = ", ".join(f"{value:.1f}" for value in resent)
    whole = f"complete {' '.join(complete)}, identical {' '.join(identical)}"
    print(f"{name}: {whole}, worst gap {gaps} ms (median {median(gaps)}), resent {waits} ms")


def peer(a: argparse.Namespace, number: int) -> None:
    """The same with the peer, whose script starts two mockers."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ.update(MOCKERS="2", MOCKER_ARGS="--speedup-ratio 1")
    complete, gaps = [], []
    for _ in range(a.repeat):
        words = ["bash", a.peer, "start", a.venv, "8124", "--migration-limit", "3"]
        line = subprocess.run(words, capture_output=True, text=True, env=environ, check=True).stdout
        pids = [int(pid) for pid in re.search(r"mocker=(\S+)", line)[1].split(",")]  # type: ignore[index]
        try:
            time.sleep(2)
            client(a.client, 8124, "--do", "true")
            told = client(a.client, 8124, "--do", f"kill -{number} {pids[0]}")
            complete.append(re.search(r"complete=(\S+)", told)[1])  # type: ignore[index]
            gaps.append(int(re.search(r"gap_ms_max=(\d+)", told)[1]))  # type: ignore[index]
        finally:
            if number == signal.SIGSTOP:
                os.kill(pids[0], signal.SIGCONT)
            subprocess.run(["bash", a.peer, "stop", a.venv], env=environ, check=False)
            time.sleep(1)
    print(f"peer: complete {complete}, worst gap {gaps} ms (median {median(gaps)})")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True, help="the fault client")
    parser.add_argument("--model", required=True, help="folder with a tokenizer")
    parser.add_argument("--peer", help="script that starts and stops the peer")
    parser.add_argument("--venv", help="virtual environment of the peer")
    parser.add_argument("--repeat", type=int, default=3)
    a = parser.parse_args()
    a.model = os.path.abspath(a.model)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        print(f"{number.name} of one of two workers, 8 streams:")
        one("  one node", lambda: Node(a.model), a, number)
        one("  three nodes, NATS and etcd", lambda: Cluster(a.model), a, number)
        if a.peer:
            peer(a, number)


if __name__ == "__main__":
    main()
