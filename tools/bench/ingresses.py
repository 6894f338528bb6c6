#!/usr/bin/env python3
"""CPU time of ingress processes that share a port, and of one that has thousands of open streams.

ingresses.py [--model FOLDER] [--processes 1 2 4] [--each] [--streams 64 5000] [--repeat 3] [--window 10]

Servers with so many ingress processes do the same work in turn, with the echo engine: CPU time of all ingress processes
together per token and per unary request, by the median, and the shares of the requests. A process that gets fewer
tokens per second handles fewer of them each time it wakes, so a token costs more; with `--each` every process has as
much work as one process alone. Then one ingress process has so many streams open at a time, which together make the
same number of tokens per second: its CPU time per token in a window in which all are open, and its memory per stream.
"""

import argparse
import asyncio
import http.client
import re
import resource
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from load import Result, Work, cpu_seconds, request_bytes, rss, run
from streams import Ours

SETTLED = 3.0
"""Seconds after which an ingress has its faster tokenizer, whose memory is no stream's."""
PACE_MS = 6.0
"""Milliseconds per token of each of 64 streams."""
STREAMS: dict[str, Any] = {"requests": 192, "streams": 64, "words": 10, "tokens": 500}
UNARY: dict[str, Any] = {"requests": 3000, "streams": 16, "words": 10, "tokens": 1, "unary": True}
STARTED = re.compile(r'^dynamo_frontend_requests_started_total\{.*process="([^"]+)".*\} ([\d.e+]+)$', re.MULTILINE)


class Control(http.client.HTTPConnection):
    """The control socket of a server."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        """Connect to the file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def started(ours: Ours) -> dict[str, float]:
    """Requests that each ingress process has taken."""
    control = Control(f"{ours.folder}/d.sock")
    control.request("GET", "/v1/metrics")
    text = control.getresponse().read().decode()
    control.close()
    found = dict[str, float]()
    for process, value in STARTED.findall(text):
        found[process] = found.get(process, 0.0) + float(value)
    return found


def processes(model: str, numbers: Sequence[int], repeat: int, *, each: bool) -> None:
    """The same work with different numbers of ingress processes. `each`: as much for each."""
    servers = [Ours(model, PACE_MS, more=[f"--Frontend.ServiceArgs.workers={number}"]) for number in numbers]
    base: dict[str, float] = {}
    try:
        for name, fields in (("stream", STREAMS), ("unary", UNARY)):
            works = [work_of(fields, number if each else 1) for number in numbers]
            found: list[list[Result]] = [[] for _ in servers]
            before = [started(ours) for ours in servers]
            for _ in range(repeat):
                for ours, work, results in zip(servers, works, found, strict=True):
                    results.append(asyncio.run(run(ours.server.port, work, ours.pids("Frontend"))))
            for ours, number, results, first in zip(servers, numbers, found, before, strict=True):
                last = started(ours)
                counts = [last[process] - first.get(process, 0.0) for process in sorted(last)]
                shares = ", ".join(f"{count / sum(counts):.3f}" for count in counts)
                value = median(cost(result, name) for result in results)
                base.setdefault(name, value)
                unit = "us per token" if name == "stream" else "us per request"
                errors = sum(result.errors for result in results)
                print(
                    f"{name:7} {number} processes: {value:8.2f} {unit}, {value / base[name]:.3f} of the first; "
                    f"shares {shares}; errors {errors}",
                    flush=True,
                )
    finally:
        for ours in servers:
            ours.stop()


def work_of(fields: dict[str, Any], factor: int) -> Work:
    """So many times the work."""
    work = Work(model="bench", **fields)
    return replace(work, streams=work.streams * factor, requests=work.requests * factor)


def cost(result: Result, name: str) -> float:
    """CPU microseconds of all processes together, per token or per request."""
    return sum(result.cpu.values()) * 1e6 / max(result.tokens if name == "stream" else len(result.first), 1)


class Streams:
    """Open streams of one server. `chunks`: read so far, of all."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.open = self.chunks = 0

    async def one(self, number: int, tokens: int) -> None:
        """Open a stream and read it to its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request_bytes(Work("bench", 1, 1, 10, tokens), self._port, number))
        await reader.readuntil(b"\r\n\r\n")
        self.open += 1
        while data := await reader.read(1 << 16):
            self.chunks += data.count(b"data: {")


async def opened(ours: Ours, count: int, window: float) -> tuple[float, float]:
    """Microseconds per token while `count` streams are open, and kB of memory for each."""
    pid, streams = ours.server.ingress, Streams(ours.server.port)
    await asyncio.sleep(SETTLED)
    before = rss(pid)
    tasks = [asyncio.create_task(streams.one(number, 2000)) for number in range(count)]
    deadline = time.monotonic() + 120
    while streams.open < count or streams.chunks < 3 * count:
        if time.monotonic() > deadline or any(task.done() for task in tasks):
            raise SystemExit(f"{streams.open} of {count} streams are open")
        await asyncio.sleep(0.1)
    cpu, chunks = cpu_seconds(pid), streams.chunks
    await asyncio.sleep(window)
    cost = (cpu_seconds(pid) - cpu) * 1e6 / (streams.chunks - chunks)
    memory = (rss(pid) - before) * 1024 / count
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return cost, memory


def many(model: str, numbers: Sequence[int], window: float) -> None:
    """Different numbers of open streams at the same number of tokens per second."""
    base = 0.0
    for count in numbers:
        ours = Ours(model, PACE_MS * count / 64)
        try:
            value, memory = asyncio.run(opened(ours, count, window))
        finally:
            ours.stop()
        base = base or value
        print(f"{count:6} streams: {value:6.2f} us per token, {value / base:.3f} of the first; {memory:.0f} kB each")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--each", action="store_true", help="as much work for each process as for one alone")
    parser.add_argument("--streams", type=int, nargs="*", default=[64, 5000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--window", type=float, default=10.0, help="seconds for which open streams are measured")
    a = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if a.processes:
        processes(a.model, a.processes, a.repeat, each=a.each)
    if a.streams:
        many(a.model, a.streams, a.window)


if __name__ == "__main__":
    main()
