#!/usr/bin/env python3
"""Gateways in turn, in front of the same two OpenAI servers: CPU, memory, added time to the first token.

peers.py [FOLDER] [--install] [--only dynamod,smg] [--repeat 5] [--out FILE.md]

FOLDER has an environment for each gateway, as `--install` makes them: FOLDER/smg, FOLDER/vllm-router, FOLDER/litellm
with the packages of these names from the package index, and FOLDER/llama-swap/llama-swap, a program that is built from
a checkout in FOLDER/llama-swap/source. A gateway that is not there is left out. dynamod is this checkout, and needs no
FOLDER.

The two servers are processes of this script: each streams a chunk to all its clients every 10 ms and does nothing else.
All gateways are up at once and are measured in turn, `--repeat` times; medians count. CPU time is that of all processes
of a gateway: the daemon, the ingress and both workers of dynamod. Every request has a key, as a gateway needs one.
NVIDIA Dynamo is not here: it serves engines that speak its own protocol, not OpenAI servers; see compare_dynamo.py.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cold_start import ROOT, ask, free_port
from load import Result, Work, run

sys.path.insert(0, ROOT)

from dynamod.observe.processes import family

MODEL = "bench"
KEY = "sk-bench"
PACE = 0.01
"""Seconds between the chunks of a stream."""
START = 120.0
"""Seconds that a gateway may take until it answers."""
ROUTER = "vllm-router"
PACKAGES = {"smg": "smg", ROUTER: ROUTER, "litellm": "litellm[proxy]"}

ROWS = {
    "unary": Work(MODEL, 2000, 16, 10, 1, unary=True, key=KEY),
    "stream": Work(MODEL, 96, 32, 10, 200, key=KEY),
}


class Chunks:
    """What the server writes: chunks as vLLM has them."""

    head: ClassVar = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def event(self, choices: list[object], **more: object) -> bytes:
        """One event of a stream, as a chunk of HTTP."""
        data = b"data: " + json.dumps({**self.head, "choices": choices, **more}).encode() + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(data), data)

    def __init__(self) -> None:
        first = {"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}
        self.first = self.event([{**first, "logprobs": None}])
        self.text = self.event([{**first, "delta": {"content": " word"}, "logprobs": None}])
        self.stop = self.event([{"index": 0, "delta": {}, "finish_reason": "length", "logprobs": None}])

    def end(self, tokens: int) -> bytes:
        """The last events."""
        usage = self.event([], usage=usage_of(tokens))
        return self.stop + usage + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def usage_of(tokens: int) -> dict[str, int]:
    """The usage of an answer."""
    return {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}


class Engine(asyncio.Protocol):
    """A connection to the server, which reads requests one after the other."""

    chunks = Chunks()
    streams: ClassVar["dict[Engine, int]"] = {}  # tokens that are still to come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A gateway has come."""
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport, self.buffer, self.tokens = transport, b"", 0

    def connection_lost(self, _error: Exception | None) -> None:
        """It has left."""
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            _, found, rest = head.partition(b"content-length:")
            body = end + 4
            if b"transfer-encoding: chunked" in head:
                if (last := self.buffer.find(b"0\r\n\r\n", body)) < 0:
                    return
                text, self.buffer = self.buffer[body:last], self.buffer[last + 5 :]
                text = text[text.find(b"{") : text.rfind(b"}") + 1]
            else:
                size = int(rest.split(b"\r\n", 1)[0]) if found else 0
                if len(self.buffer) < body + size:
                    return
                text, self.buffer = self.buffer[body : body + size], self.buffer[body + size :]
            self.request(head.split(b" ", 2)[1].decode(), text)

    def request(self, path: str, text: bytes) -> None:
        """Answer one request."""
        if not path.endswith("/chat/completions"):
            card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "bench", "root": MODEL}
            self.write({"object": "list", "data": [card], "status": "healthy", "model_path": MODEL, "served": MODEL})
            return
        asked = json.loads(text)
        tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 1
        if not asked.get("stream"):
            message = {"role": "assistant", "content": " word" * tokens}
            choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": None}
            whole = {**self.chunks.head, "object": "chat.completion", "choices": [choice], "usage": usage_of(tokens)}
            self.write(whole)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head + self.chunks.first)
        self.tokens, self.streams[self] = tokens, tokens - 1

    def write(self, answer: dict[str, object]) -> None:
        """Write an answer in one piece."""
        data = json.dumps(answer).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.transport.write(head.encode() + data)

    @classmethod
    async def serve(cls, port: int) -> None:
        """Serve until the process ends."""
        await asyncio.get_running_loop().create_server(cls, "127.0.0.1", port)
        while True:
            await asyncio.sleep(PACE)
            for stream, left in [*cls.streams.items()]:
                if left:
                    cls.streams[stream] = left - 1
                    stream.transport.write(cls.chunks.text)
                else:
                    del cls.streams[stream]
                    stream.transport.write(cls.chunks.end(stream.tokens))


Commands = Callable[[int, Sequence[str], Path, Path], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Gateway:
    """How one is started, and which of the things that operators ask for it `does`.

    `commands(port, urls, folder, own)`: one for each process; `folder`: of all gateways, `own`: of this run of it.
    `where`: the program, below `folder`; empty: this checkout.
    """

    name: str
    commands: Commands
    does: str
    where: str = ""


def _dynamod(port: int, urls: Sequence[str], _folder: Path, _own: Path) -> Sequence[Sequence[str]]:
    run_ = [sys.executable, "-c", "from dynamod.cli.main import dynamo_run; dynamo_run()"]
    first = [*run_, "in=http", f"out=openai:{urls[0]}/v1", "--model-name", MODEL, "--http-port", str(port)]
    more = [[*run_, "in=dyn", f"out=openai:{url}/v1", "--model-name", MODEL] for url in urls[1:]]
    return [[*first, "--api-key", KEY], *more]


def _rust(program: str, *more: str) -> Commands:
    def commands(port: int, urls: Sequence[str], folder: Path, _own: Path) -> Sequence[Sequence[str]]:
        address = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        return [[str(folder / program), *more, "--worker-urls", *urls, *address, "--policy", "round_robin"]]

    return commands


def _litellm(port: int, urls: Sequence[str], folder: Path, own: Path) -> Sequence[Sequence[str]]:
    models = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"}}
        for url in urls
    ]
    config = own / "config.yaml"
    settings = {"drop_params": True}
    config.write_text(
        json.dumps({"model_list": models, "general_settings": {"master_key": KEY}, "litellm_settings": settings})
    )
    program = str(folder / "litellm/bin/litellm")
    return [[program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]]


def _llama_swap(port: int, urls: Sequence[str], folder: Path, own: Path) -> Sequence[Sequence[str]]:
    config = own / "config.yaml"
    model = {"cmd": "sleep 100000", "proxy": urls[0], "checkEndpoint": "none", "concurrencyLimit": 100}
    config.write_text(json.dumps({"models": {MODEL: model}, "apiKeys": [KEY]}))
    return [[str(folder / "llama-swap/llama-swap"), "--config", str(config), "--listen", f"127.0.0.1:{port}"]]


GATEWAYS = (
    Gateway(
        "dynamod",
        _dynamod,
        "keys, limits, metrics per model, request log, checks of each server, requests move, streams end with an error",
    ),
    Gateway("smg", _rust("smg/bin/smg", "launch", "--api-key", KEY), "retries, checks, metrics, a key", "smg/bin/smg"),
    Gateway(
        "vllm-router", _rust("vllm-router/bin/vllm-router"), "retries, checks, metrics", "vllm-router/bin/vllm-router"
    ),
    Gateway("litellm", _litellm, "keys, budgets, retries, forms of many providers", "litellm/bin/litellm"),
    Gateway("llama-swap", _llama_swap, "keys, starts servers on demand; one server", "llama-swap/llama-swap"),
)


class Running:
    """A gateway that runs, in a folder of its own."""

    def __init__(self, gateway: Gateway, urls: Sequence[str], folder: Path) -> None:
        self.gateway, self.port = gateway, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="dm-peer-"))
        self.env = {**os.environ, "DYNAMOD_SOCKET": str(self.folder / "d.sock"), "DYN_LOG": "info"}
        if gateway.name == "dynamod":
            self.env["PYTHONPATH"] = os.pathsep.join([ROOT, self.env.get("PYTHONPATH", "")])
        else:
            self.env.pop("PYTHONPATH", None)  # our package has names of theirs
        self._log = (self.folder / "log").open("wb")
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for command in gateway.commands(self.port, urls, folder, self.folder):
                self.processes.append(
                    subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=self._log, stderr=self._log)
                )
                self._ready()
            self.pids = self._all()
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> None:
        end = time.monotonic() + START
        while not ask(self.port, MODEL, KEY):
            if self.processes[-1].poll() is not None or time.monotonic() > end:
                text = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"{self.gateway.name} does not answer:\n{text}")
            time.sleep(0.2)

    def _all(self) -> list[int]:
        """Pids of the gateway. The daemon of dynamod, parent of ingress and workers, is no child of this script."""
        found = [process.pid for process in self.processes]
        if self.gateway.name == "dynamod":
            command = [sys.executable, "-c", "from dynamod.cli.main import dynamo; dynamo()"]
            command += ["doctor", "memory", "--output", "json"]
            answer = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, check=True, timeout=30)
            found += [row["pid"] for row in json.loads(answer.stdout)]
        return sorted({pid for one in found for pid in family(one)})

    def stop(self) -> None:
        """End it."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGINT)
        for process in reversed(self.processes):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Figures:
    """Of one gateway: CPU milliseconds per request, CPU microseconds per token, milliseconds, MB."""

    request_ms: float
    token_us: float
    first_ms: float
    rss_mb: int


def figures(results: dict[str, list[Result]], pids: Sequence[int], direct: float) -> Figures:
    """Medians of the turns. `direct`: milliseconds to the first token without a gateway."""
    unary, stream = results["unary"], results["stream"]
    return Figures(
        statistics.median(sum(one.ms_per_request(pid) for pid in pids) for one in unary),
        statistics.median(sum(one.ms_per_request(pid) for pid in pids) for one in stream) * 1e3 / ROWS["stream"].tokens,
        statistics.median(one.ttft(0.5) for one in stream) - direct,
        sum(stream[-1].rss.values()),
    )


def measure(running: Sequence[Running], direct: int, repeat: int) -> dict[str, Figures]:
    """Ask all in turn. `direct`: the port of a server itself."""
    results: dict[str, dict[str, list[Result]]] = {one.gateway.name: {name: [] for name in ROWS} for one in running}
    first: list[float] = []
    for turn in range(repeat + 1):
        first.append(asyncio.run(run(direct, ROWS["stream"], [])).ttft(0.5))
        for one in running:
            for name, work in ROWS.items():
                if not turn:  # warms up
                    work = dataclasses.replace(work, requests=200 if work.unary else 32)
                result = asyncio.run(run(one.port, work, one.pids))
                if result.errors:
                    print(f"{one.gateway.name}, {name}: {result.errors} of {work.requests} requests failed")
                if turn:
                    results[one.gateway.name][name].append(result)
    base = statistics.median(first)
    print(f"without a gateway: first token after {base:.1f} ms")
    return {one.gateway.name: figures(results[one.gateway.name], one.pids, base) for one in running}


def markdown(found: dict[str, Figures], versions: dict[str, str]) -> str:
    """As a table."""
    does = {one.name: one.does for one in GATEWAYS}
    lines = [
        "| gateway | CPU per request | CPU per token | first token later by | memory | what it does |",
        "|---" * 6 + "|",
    ]
    for name, one in found.items():
        row = f"{one.request_ms:.2f} ms | {one.token_us:.1f} us | {one.first_ms:.1f} ms | {one.rss_mb} MB"
        lines.append(f"| {name} {versions.get(name, '')} | {row} | {does[name]} |")
    return "\n".join(lines) + "\n"


def install(folder: Path) -> None:
    """Make the environments of the gateways, with uv."""
    for name, package in PACKAGES.items():
        python = folder / name / "bin/python"
        if not python.exists():
            subprocess.run(["uv", "venv", "--quiet", str(folder / name)], check=True, timeout=120)
        command = ["uv", "pip", "install", "--quiet", "--python", str(python), package]
        subprocess.run(command, check=True, timeout=900)
    source = folder / "llama-swap/source"
    if source.is_dir() and shutil.which("go"):
        subprocess.run(["go", "build", "-o", "../llama-swap", "."], cwd=source, check=True, timeout=900)


def version(name: str, folder: Path) -> str:
    """Of a package of the index."""
    if name not in PACKAGES:
        return ""
    code = f"from importlib.metadata import version; print(version({name!r}))"
    command = [str(folder / name / "bin/python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def main() -> None:
    """Run and print."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(Engine.serve(int(sys.argv[2])))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends what was started, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="", help="with an environment per gateway")
    parser.add_argument("--install", action="store_true", help="make the environments first; needs uv")
    parser.add_argument("--only", default="", help="names of gateways, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", help="write the table as markdown")
    a = parser.parse_args()
    folder = Path(a.folder).resolve()
    if a.install:
        install(folder)
    wanted = a.only.split(",") if a.only else [one.name for one in GATEWAYS]
    chosen = [one for one in GATEWAYS if one.name in wanted and (not one.where or (folder / one.where).exists())]
    ports = [free_port(), free_port()]
    servers = [subprocess.Popen([sys.executable, __file__, "serve", str(port)]) for port in ports]
    running: list[Running] = []
    try:
        time.sleep(0.5)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for one in chosen:
            running += [Running(one, urls, folder)]
        found = measure(running, ports[0], a.repeat)
    finally:
        for up in running:
            up.stop()
        for server in servers:
            server.terminate()
            server.wait()
    text = markdown(found, {one.name: version(one.name, folder) for one in chosen})
    print(text, end="")
    if a.out:
        Path(a.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
