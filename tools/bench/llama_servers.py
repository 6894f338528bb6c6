#!/usr/bin/env python3
"""`dynamo-run out=llamacpp` beside llama.cpp's own llama-server and llama-cpp-python's server, in one run.

llama_servers.py MODEL.gguf ... [--llama-server PATH] [--server-python PYTHON] [--threads 2] [--streams 1 8]
                 [--tokens 100] [--words 12] [--repeat 5]

All servers of a model are up at once and measured in turn, `--repeat` times; the median of the tokens per second of
all streams together counts. Prompts are new in each turn and the same for all servers: streamed completions, greedy.

A server is left out when `--llama-server`, or `llama_cpp.server` in `--server-python`, is missing. llama-server is
built from the source distribution of llama-cpp-python, in vendor/llama.cpp: `cmake -B out -DCMAKE_BUILD_TYPE=Release`,
`cmake --build out --target llama-server`. `make_gguf.py` makes models that are worth measuring.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from load import WORDS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dynamod.preprocess.source import open_source  # noqa: E402

PREFIX = "data: "
START = 120.0
"""Seconds that a server may take until it answers."""
DYNAMOD, LLAMA_SERVER, PYTHON_SERVER = "dynamod", "llama-server", "llama_cpp.server"


@dataclass(frozen=True)
class Load:
    """So many prompts of `words` words at once, answers of `tokens` tokens each."""

    streams: int
    words: int
    tokens: int


class Server:
    """A process that listens on a port of its own, with its files in a folder of its own."""

    def __init__(self, name: str, command: Callable[[int, Path], Sequence[str]], threads: int) -> None:
        self.name, self.folder = name, Path(tempfile.mkdtemp())
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "DYNAMOD_SOCKET": str(self.folder / "d.sock")}
        if name == DYNAMOD:
            env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        self._log = (self.folder / "log").open("w+")
        self._process = subprocess.Popen(
            command(self.port, self.folder), cwd=self.folder, env=env, stdout=self._log, stderr=self._log
        )

    def model(self) -> str:
        """The name that it serves, when it has begun to. Ends the script when it does not begin."""
        deadline = time.monotonic() + START
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5) as answer:
                    if found := json.load(answer)["data"]:
                        return str(found[0]["id"])
            except OSError:
                pass
            time.sleep(0.2)
        self._log.seek(0)
        raise SystemExit(f"{self.name} did not start:\n{self._log.read()[-2000:]}")

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def commands(a: argparse.Namespace, model: Path) -> dict[str, Callable[[int, Path], Sequence[str]]]:
    """How each server is started, by its name; those that are missing are left out."""
    most = max(a.streams)
    python = os.path.abspath(a.server_python)  # a link of an environment stays one
    context = most * 1024  # KV cells of all streams together

    def dynamod(port: int, folder: Path) -> Sequence[str]:
        arguments = folder / "arguments.json"
        arguments.write_text(json.dumps({"n_threads": a.threads, "n_ctx": context}))
        start = [sys.executable, "-c", "from dynamod.cli.main import dynamo_run; dynamo_run()", "in=http"]
        return [*start, "out=llamacpp", str(model), "--http-port", str(port), "--extra-engine-args", str(arguments)]

    def llama_server(port: int, _folder: Path) -> Sequence[str]:
        start = [os.path.abspath(a.llama_server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
        return [*start, "-t", str(a.threads), "-tb", str(a.threads), "-np", str(most), "-c", str(context)]

    def python_server(port: int, _folder: Path) -> Sequence[str]:
        start = [python, "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1"]
        threads = ["--n_threads", str(a.threads), "--n_threads_batch", str(a.threads)]
        return [*start, "--port", str(port), *threads, "--n_ctx", "1024", "--interrupt_requests", "False"]

    found: dict[str, Callable[[int, Path], Sequence[str]]] = {DYNAMOD: dynamod}
    if a.llama_server:
        found[LLAMA_SERVER] = llama_server
    probe = [python, "-c", "import llama_cpp.server.app"]
    if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
        found[PYTHON_SERVER] = python_server
    else:
        print(f"{a.server_python} has no llama_cpp.server: pip install 'llama-cpp-python[server]'", file=sys.stderr)
    return found


async def tokens_per_second(server: Server, fields: dict[str, Any], load: Load, turn: int) -> float:
    """Of all streams together. `fields`: of each request; `turn`: what the prompts follow from."""
    prompts = random.Random(f"{turn} {load}")
    texts = [" ".join(prompts.choices(WORDS, k=load.words)) for _ in range(load.streams)]
    begun = time.perf_counter()
    await asyncio.gather(*(_stream(server, {**fields, "prompt": text}, load.tokens) for text in texts))
    return load.streams * load.tokens / (time.perf_counter() - begun)


async def _stream(server: Server, fields: dict[str, Any], tokens: int) -> None:
    """One answer, read to its end. Raises SystemExit when it is shorter, so that tokens need not be counted."""
    body = {**fields, "max_tokens": tokens, "temperature": 0, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    finish = None
    async with asyncio.timeout(600):
        while line := await reader.readline():
            text = line.decode().strip()
            if not text.startswith(PREFIX + "{"):
                continue
            choices = json.loads(text.removeprefix(PREFIX)).get("choices") or [{}]
            finish = choices[0].get("finish_reason") or finish
    writer.close()
    if finish != "length":
        raise SystemExit(f"{server.name} ended an answer with {finish!r} before {tokens} tokens")


def measured(a: argparse.Namespace, model: Path) -> list[tuple[Load, dict[str, float]]]:
    """The medians of each load, by server."""
    servers = [Server(name, command, a.threads) for name, command in commands(a, model).items()]
    try:
        fields: dict[str, dict[str, Any]] = {server.name: {"model": server.model()} for server in servers}
        for name, more in fields.items():  # no answer ends by itself; llama_cpp.server does not know ignore_eos
            ends = dict.fromkeys(map(str, open_source(model).eos_ids), -100)
            more |= {"logit_bias": ends} if name == PYTHON_SERVER else {"ignore_eos": True}
        found: list[tuple[Load, dict[str, float]]] = []
        for streams in a.streams:
            load = Load(streams, a.words, a.tokens)
            seen: dict[str, list[float]] = {server.name: [] for server in servers}
            for turn in range(a.repeat + 1):
                for server in servers[turn % len(servers) :] + servers[: turn % len(servers)]:
                    rate = asyncio.run(tokens_per_second(server, fields[server.name], load, turn))
                    if turn:  # the first turn only warms up
                        seen[server.name].append(rate)
            found.append((load, {name: median(rates) for name, rates in seen.items()}))
        return found
    finally:
        for server in servers:
            server.stop()


def row(model: Path, load: Load, rates: dict[str, float]) -> str:
    """A line of the table."""
    ours = rates[DYNAMOD]
    cells = [model.name, str(load.streams), f"{ours:.1f}"]
    for name in (LLAMA_SERVER, PYTHON_SERVER):
        cells += [f"{rates[name]:.1f}", f"{ours / rates[name]:.2f}"] if name in rates else ["", ""]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--llama-server", help="path of the program")
    parser.add_argument("--server-python", default=sys.executable, help="interpreter with llama-cpp-python[server]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    a = parser.parse_args()
    print(f"tokens/s of all streams, {a.threads} threads, {a.tokens} tokens, median of {a.repeat}", flush=True)
    print(
        f"| model | streams | {DYNAMOD} | {LLAMA_SERVER} | ratio | {PYTHON_SERVER} | ratio |\n|{'---|' * 7}", flush=True
    )
    for model in a.models:
        for load, rates in measured(a, model.resolve()):
            print(row(model, load, rates), flush=True)


if __name__ == "__main__":
    main()
