#!/usr/bin/env python3
"""CPU time of ingress processes that share a port, and of one that has thousands of open streams.

ingresses.py [--model FOLDER] [--processes 1 2 4] [--each] [--streams 64 5000] [--sends] [--repeat 5]

Servers with so many ingress processes do the same work in turn, with the echo engine: CPU time of all ingress processes
together per token of open streams and per unary request, by the median, and the shares of the requests. A process that
gets fewer tokens per second handles fewer of them each time it wakes, so a token costs more; with `--each` every
process has as much work as one process alone. Processes that share few cores replace each other's data in the caches;
`--in-flight` says how many unary requests each of them has at a time. Then one ingress process has so many streams open
at a time, which together make the same number of tokens per second: its CPU time per token in a window in which all are
open, and its memory per stream. With `--sends` a server that only sends (`sends.py`) has the same streams: what the
kernel takes for them.
"""

import argparse
import asyncio
import http.client
import re
import resource
import socket
import time
from collections.abc import Sequence
from statistics import median

import sends
from load import Work, cpu_seconds, request_bytes, rss, run
from streams import Ours

SETTLED = 3.0
"""Seconds after which an ingress has its faster tokenizer, whose memory is no stream's."""
PACE_MS = 6.0
"""Milliseconds per token of each of 64 streams."""
STREAMS = 64
"""Open streams of one process, while processes are compared."""
STEADY = 3.0
"""Seconds for which these are measured each time."""
UNARY = 3000
"""Unary requests to one process."""
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


def processes(model: str, numbers: Sequence[int], repeat: int, in_flight: int, *, each: bool) -> None:
    """The same work with different numbers of ingress processes. `each`: as much for each."""
    servers = [Ours(model, PACE_MS, more=[f"--Frontend.ServiceArgs.workers={number}"]) for number in numbers]
    try:
        for name, unit in (("stream", "us per token"), ("unary", "us per request")):
            found: list[list[float]] = [[] for _ in servers]
            before = [started(ours) for ours in servers]
            for _ in range(repeat):
                for ours, number, costs in zip(servers, numbers, found, strict=True):
                    factor, pids = number if each else 1, ours.pids("Frontend")
                    if name == "stream":
                        costs.append(asyncio.run(opened(ours.server.port, pids, STREAMS * factor, STEADY))[0])
                    else:
                        costs.append(asyncio.run(answered(ours.server.port, pids, factor, in_flight)))
            for ours, number, costs, first in zip(servers, numbers, found, before, strict=True):
                last = started(ours)
                counts = [last[process] - first.get(process, 0.0) for process in sorted(last)]
                shares = ", ".join(f"{count / sum(counts):.3f}" for count in counts)
                value = median(costs)
                print(
                    f"{name:7} {number} processes: {value:8.2f} {unit} ({min(costs):.2f} to {max(costs):.2f}), "
                    f"{value / median(found[0]):.3f} of the first; shares {shares}",
                    flush=True,
                )
    finally:
        for ours in servers:
            ours.stop()


async def answered(port: int, pids: Sequence[int], factor: int, in_flight: int) -> float:
    """CPU microseconds of all processes together per unary request. `factor`: how many times the work."""
    work = Work("bench", UNARY * factor, in_flight * factor, words=10, tokens=1, unary=True)
    result = await run(port, work, list(pids))
    if result.errors:
        raise SystemExit(f"{result.errors} requests failed")
    return sum(result.cpu.values()) * 1e6 / len(result.first)


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


async def opened(port: int, pids: Sequence[int], count: int, window: float) -> tuple[float, int]:
    """CPU microseconds per token in a window in which `count` streams are open, and MB then, of all processes."""
    streams = Streams(port)
    tasks = [asyncio.create_task(streams.one(number, 2000)) for number in range(count)]
    deadline = time.monotonic() + 120
    while streams.open < count or streams.chunks < 3 * count:
        if time.monotonic() > deadline or any(task.done() for task in tasks):
            raise SystemExit(f"{streams.open} of {count} streams are open")
        await asyncio.sleep(0.1)
    cpu, chunks = sum(map(cpu_seconds, pids)), streams.chunks
    await asyncio.sleep(window)
    cost = (sum(map(cpu_seconds, pids)) - cpu) * 1e6 / (streams.chunks - chunks)
    memory = sum(map(rss, pids))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return cost, memory


def many(model: str, numbers: Sequence[int], window: float, *, alone: bool) -> None:
    """Different numbers of open streams, the same tokens per second. `alone`: of a server that only sends, too."""
    base: list[float] = []
    for count in numbers:
        ours = Ours(model, PACE_MS * count / STREAMS)
        try:
            time.sleep(SETTLED)
            before = rss(ours.server.ingress)
            value, most = asyncio.run(opened(ours.server.port, [ours.server.ingress], count, window))
        finally:
            ours.stop()
        values = [value]
        if alone:
            with sends.started(STREAMS * 1000 / PACE_MS) as (port, pid):
                values.append(asyncio.run(opened(port, [pid], count, window))[0])
        base = base or values
        memory = (most - before) * 1024 / count
        line = f"{count:6} streams: {value:6.2f} us per token, {value / base[0]:.3f} of the first; {memory:.0f} kB each"
        more = f"; sends alone {values[1]:.2f} us, {values[1] / base[1]:.3f}" if alone else ""
        print(line + more, flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--each", action="store_true", help="as much work for each process as for one alone")
    parser.add_argument("--in-flight", type=int, default=16, help="unary requests at a time, for each process")
    parser.add_argument("--streams", type=int, nargs="*", default=[64, 5000])
    parser.add_argument("--sends", action="store_true", help="a server that only sends alongside, for --streams")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--window", type=float, default=10.0, help="seconds for which open streams are measured")
    a = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if a.processes:
        processes(a.model, a.processes, a.repeat, a.in_flight, each=a.each)
    if a.streams:
        many(a.model, a.streams, a.window, alone=a.sends)


if __name__ == "__main__":
    main()
