#!/usr/bin/env python3
"""CPU time of ingress and worker per streamed token and per request, with the echo engine.

streams.py [--model FOLDER] [--repeat 3] [--peer PORT:MODEL:FRONTEND_PID:WORKER_PID]

Starts `dynamo serve` with echo_core and runs each row `--repeat` times; the median counts. The default pace gives each
token a chunk of its own: an engine without any pause runs ahead of the ingress, which then merges tokens.
With `--peer` the same load goes to another running OpenAI server in turn, and the ratio is printed: only numbers of one
session may be compared.
"""

import argparse
import asyncio
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
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from load import Result, Work, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

ROWS = {
    "stream 10 words, 500 tokens": {"requests": 192, "streams": 64, "words": 10, "tokens": 500},
    "stream 400 words, 128 tokens": {"requests": 384, "streams": 64, "words": 400, "tokens": 128},
    "unary 10 words, 1 token": {"requests": 6000, "streams": 16, "words": 10, "tokens": 1, "unary": True},
    "unary 4000 words, 1 token": {"requests": 500, "streams": 4, "words": 4000, "tokens": 1, "unary": True},
}


@dataclass(frozen=True)
class Server:
    """Where to ask, and which processes count."""

    port: int
    model: str
    ingress: int
    worker: int


class Ours:
    """`dynamo serve` in a folder of its own."""

    def __init__(
        self, model: str, pace: float, engine: str = "echo_core", more: Sequence[str] = (), log: str = "warn"
    ) -> None:
        self.folder = tempfile.mkdtemp()
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
        self.env = {**os.environ, "DYNAMOD_SOCKET": f"{self.folder}/d.sock", "DYN_TOKEN_ECHO_DELAY_MS": str(pace)}
        self.env["PYTHONPATH"] = os.pathsep.join([ROOT, self.env.get("PYTHONPATH", "")])
        command = [*self.dynamo(), "serve", "-f", "configs/agg.yaml", f"--Worker.engine={engine}"]
        command += [*more, f"--Worker.model={model}", "--Worker.served-model-name=bench", f"--Frontend.port={port}"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.env, "DYN_LOG": log},
            stdout=subprocess.PIPE,
            stderr=None if log == "warn" else subprocess.DEVNULL,  # `dynamo logs` has it too
            text=True,
        )
        deadline = time.monotonic() + 60
        while not self._ready(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("dynamo serve did not start")
            time.sleep(0.1)
        self.server = Server(port, "bench", self.pids("Frontend")[0], self.pids("Worker")[0])

    def pids(self, component: str) -> list[int]:
        """The processes of a component."""
        answer = subprocess.run([*self.dynamo(), "ps", "--output", "json"], env=self.env, cwd=ROOT, capture_output=True)
        rows = json.loads(answer.stdout)
        rows = rows["components"] if isinstance(rows, dict) else rows
        return [row["pid"] for row in rows if row["component"] == component]

    @staticmethod
    def dynamo() -> list[str]:
        """The command `dynamo` of this checkout."""
        return [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()"]

    @staticmethod
    def _ready(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                return bool(json.load(answer)["data"])
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def measure(server: Server, work: Work) -> Result:
    """One run of one row."""
    return asyncio.run(run(server.port, work, [server.ingress, server.worker]))


def line(title: str, server: Server, work: Work, results: list[Result]) -> float:
    """Print the median of a row; returns the ingress's figure: microseconds per chunk, or per unary request."""
    unary = work.unary
    unit, scale = ("ms/request", 1.0) if unary else ("us/token", 1.0)
    per = [r.ms_per_request(server.ingress) if unary else r.us_per_token(server.ingress) for r in results]
    worker = [r.ms_per_request(server.worker) if unary else r.us_per_token(server.worker) for r in results]
    value = statistics.median(per) * scale
    print(
        f"  {title:7} ingress {value:7.3f} {unit} ({min(per):.3f} to {max(per):.3f}), "
        f"worker {statistics.median(worker):.3f}; ttft p50 {statistics.median(r.ttft(0.5) for r in results):.1f} ms, "
        f"p99 {statistics.median(r.ttft(0.99) for r in results):.1f}; rss {results[-1].rss[server.ingress]} + "
        f"{results[-1].rss[server.worker]} MB; "
        f"{results[-1].chunks / max(results[-1].tokens, 1):.2f} chunks/token; errors {sum(r.errors for r in results)}"
    )
    return value


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pace", type=float, default=6.0, help="milliseconds per token and stream of the echo engine")
    parser.add_argument("--row", action="append", help="part of a row's name; all when left out")
    parser.add_argument("--peer", help="PORT:MODEL:FRONTEND_PID:WORKER_PID of another server")
    a = parser.parse_args()
    peer = None
    if a.peer:
        port, model, frontend, worker = a.peer.split(":")
        peer = Server(int(port), model, int(frontend), int(worker))
    ours = Ours(a.model, a.pace)
    try:
        for name, fields in ROWS.items():
            if a.row and not any(part in name for part in a.row):
                continue
            mine, theirs = [], []
            work = Work(model=ours.server.model, **fields)
            warm = Work(ours.server.model, 64, 16, work.words, min(work.tokens, 50), work.unary)
            if not measure(ours.server, warm).first:
                print(f"{name}\n  left out: no request succeeded; prompts of this length need another --model")
                continue
            other = None
            if peer is not None:
                other = Work(model=peer.model, **fields)
                measure(peer, Work(peer.model, 64, 16, work.words, min(work.tokens, 50), work.unary))
            for _ in range(a.repeat):
                mine.append(measure(ours.server, work))
                if peer is not None and other is not None:
                    theirs.append(measure(peer, other))
            print(name)
            value = line("ours", ours.server, work, mine)
            if peer is not None:
                print(f"  ratio   {line('peer', peer, work, theirs) / value:.2f}")
    finally:
        ours.stop()


if __name__ == "__main__":
    main()
