#!/usr/bin/env python3
"""vLLM with its own OpenAI server and with dynamod, on the same GPU, in one run.

vllm_server.py MODEL [--python PYTHON] [--streams 64 256] [--tokens 128] [--words 100] [--turns 2] [--clients 8]
               [-- words for both vLLMs]

PYTHON has vLLM and dynamod. Both servers are up at once, each with an engine of its own and the same words, and are
measured in turn; the first turn warms up and does not count. A turn is one burst of streams of exactly `--tokens`
tokens from `--clients` client processes on this machine. CPU time is that of all processes of a server, those of
vLLM's engine apart: what is left is what serving costs. A folder with a configuration and a tokenizer is a model with
`-- --load-format dummy`.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cold_start import ROOT, ask, free_port
from load import Result, Work, cpu_seconds, run

sys.path.insert(0, ROOT)

from dynamod.observe.processes import family

MODEL = "bench"
START = 600.0
"""Seconds that a server may take until it answers."""
ENGINE = "VLLM::"
"""Beginning of the names of vLLM's own processes."""
DYNAMOD, VLLM = "dynamod", "vLLM's server"


class Server:
    """A server that runs, in a folder of its own. `pids`: its processes."""

    def __init__(self, name: str, python: str, model: Path, words: Sequence[str]) -> None:
        self.name, self.port, self.folder = name, free_port(), Path(tempfile.mkdtemp(prefix="dm-vllm-"))
        env = {**os.environ, "DYNAMOD_SOCKET": str(self.folder / "d.sock"), "VLLM_NO_USAGE_STATS": "1"}
        port = str(self.port)
        if name == DYNAMOD:
            env["PYTHONPATH"] = os.pathsep.join([ROOT, env.get("PYTHONPATH", "")])
            command = [python, "-c", "from dynamod.cli.main import dynamo_run; dynamo_run()", "in=http", "out=vllm"]
            command += [str(model), "--model-name", MODEL, "--http-port", port, *(["--", *words] if words else [])]
        else:
            command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
            command += ["--served-model-name", MODEL, "--port", port, "--uvicorn-log-level", "warning", *words]
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=self._log, stderr=self._log)
        self._marker = f"DYNAMOD_SOCKET={env['DYNAMOD_SOCKET']}\0".encode()

    def ready(self) -> None:
        """Wait until it answers. Ends the script when it does not."""
        end = time.monotonic() + START
        while not ask(self.port, MODEL):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not answer:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.5)

    def pids(self) -> dict[int, bool]:
        """Its processes, and which of them are the engine's. The daemon of dynamod is no child of this script."""
        found = {pid for one in self._marked() for pid in family(one)}
        return {pid: _name(pid).startswith(ENGINE) for pid in sorted(found)}

    def _marked(self) -> list[int]:
        marked = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._marker in (folder / "environ").read_bytes():
                    marked.append(int(folder.name))
            except OSError:  # it has ended, or is another user's
                continue
        return marked

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def part(port: int, work: Work) -> Result:
    """What one client process does."""
    return asyncio.run(run(port, work, []))


def burst(server: Server, streams: int, a: argparse.Namespace, clients: ProcessPoolExecutor) -> tuple[float, ...]:
    """Tokens/s, milliseconds to the first token (median, 99 %), CPU microseconds per token without the engine."""
    pids = server.pids()
    before = {pid: cpu_seconds(pid) for pid in pids}
    shares = [streams // a.clients + (number < streams % a.clients) for number in range(a.clients)]
    works = [Work(MODEL, share, share, a.words, a.tokens) for share in shares if share]
    parts = list(clients.map(part, [server.port] * len(works), works))
    if errors := sum(one.errors for one in parts):
        print(f"{server.name}: {errors} of {streams} requests failed")
    whole = Result(tokens=sum(one.tokens for one in parts), first=[time for one in parts for time in one.first])
    spent = sum(cpu_seconds(pid) - before[pid] for pid, engine in pids.items() if not engine)
    wall = max(one.wall for one in parts)
    return whole.tokens / wall, whole.ttft(0.5), whole.ttft(0.99), spent / max(whole.tokens, 1) * 1e6


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends what was started, too
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    a = parser.parse_args(sys.argv[1 : len(sys.argv) - len(words) - ("--" in sys.argv)])
    servers = [Server(name, a.python, a.model.resolve(), words) for name in (VLLM, DYNAMOD)]
    try:
        for server in servers:
            server.ready()
        print("| streams | server | tokens/s | first token, median | 99 % | CPU per token without the engine |")
        print("|---|---|---|---|---|---|")
        with ProcessPoolExecutor(a.clients) as clients:
            for turn in range(a.turns + 1):
                for streams in a.streams:
                    for server in servers:
                        rate, median, late, cost = burst(server, streams, a, clients)
                        if turn:
                            cells = f"{rate:.0f} | {median:.0f} ms | {late:.0f} ms | {cost:.1f} us"
                            print(f"| {streams} | {server.name} | {cells} |", flush=True)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
