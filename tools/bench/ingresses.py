#!/usr/bin/env python3
"""CPU time of ingress processes that share a port, and of one that has thousands of open streams.

ingresses.py [--model FOLDER] [--processes 1 2 4] [--each] [--apart] [--streams 64 5000] [--sends] [--repeat 5]

Servers with so many ingress processes do the same work in turn, with the echo engine: CPU time of all ingress processes
together per token of open streams and per unary request, by the median, and the shares of the requests. A process that
gets fewer tokens per second handles fewer of them each time it wakes, so a token costs more; with `--each` every
process has as much work as one process alone. Processes that share few cores replace each other's data in the caches;
`--apart` shows how much of a ratio is that: as many servers, each of one process, get the same work. `--in-flight` says
how many unary requests each process has at a time. Then one ingress process has so many streams open at a time, which
together make the same number of tokens per second: its CPU time per token in a window in which all are open, and its
memory per stream. With `--sends` a server that only sends (`sends.py`) has the same streams: what the kernel takes for
them.
"""

import argparse
import asyncio
import http.client
import re
import resource
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Group:
    """Ingress processes that get the same work as those of other groups: of one server, or of a server each."""

    name: str
    servers: Sequence[Ours]
    processes: int

    @property
    def ports(self) -> list[int]:
        """Where to ask."""
        return [ours.server.port for ours in self.servers]

    @property
    def pids(self) -> list[int]:
        """The ingress processes."""
        return [pid for ours in self.servers for pid in ours.pids("Frontend")]

    def started(self) -> dict[str, float]:
        """Requests that each ingress process has taken."""
        return {f"{index} {name}": n for index, ours in enumerate(self.servers) for name, n in started(ours).items()}


def processes(a: argparse.Namespace) -> None:
    """The same work with different numbers of ingress processes."""
    groups: list[Group] = []
    try:
        for number in a.processes:
            ours = Ours(a.model, PACE_MS, more=[f"--Frontend.ServiceArgs.workers={number}"])
            groups.append(Group(f"{number} processes", [ours], number))
            if a.apart and number > 1:
                groups.append(Group(f"{number} servers", [Ours(a.model, PACE_MS) for _ in range(number)], number))
        compared(groups, a.repeat, a.in_flight, each=a.each)
    finally:
        for group in groups:
            for ours in group.servers:
                ours.stop()


def compared(groups: Sequence[Group], repeat: int, in_flight: int, *, each: bool) -> None:
    """Have the groups work in turn, and print. `each`: as much work for each process as for one alone."""
    for name, unit in (("stream", "us per token"), ("unary", "us per request")):
        found: list[list[float]] = [[] for _ in groups]
        before = [group.started() for group in groups]
        for _ in range(repeat):
            for group, costs in zip(groups, found, strict=True):
                factor, pids = group.processes if each else 1, group.pids
                if name == "stream":
                    costs.append(asyncio.run(opened(group.ports, pids, STREAMS * factor, STEADY))[0])
                else:
                    costs.append(asyncio.run(answered(group.ports, pids, UNARY * factor, in_flight * factor)))
        for group, costs, first in zip(groups, found, before, strict=True):
            last = group.started()
            counts = [last[process] - first.get(process, 0.0) for process in sorted(last)]
            shares = ", ".join(f"{count / sum(counts):.3f}" for count in counts)
            value = median(costs)
            print(
                f"{name:7} {group.name}: {value:8.2f} {unit} ({min(costs):.2f} to {max(costs):.2f}), "
                f"{value / median(found[0]):.3f} of the first; shares {shares}",
                flush=True,
            )


async def answered(ports: Sequence[int], pids: Sequence[int], requests: int, in_flight: int) -> float:
    """CPU microseconds of all processes together per unary request."""
    count = len(ports)
    work = Work("bench", requests // count, max(in_flight // count, 1), words=10, tokens=1, unary=True)
    before = sum(map(cpu_seconds, pids))
    results = await asyncio.gather(*(run(port, work, []) for port in ports))
    if errors := sum(result.errors for result in results):
        raise SystemExit(f"{errors} requests failed")
    return (sum(map(cpu_seconds, pids)) - before) * 1e6 / sum(len(result.first) for result in results)


class Streams:
    """Open streams, the same number at each port. `chunks`: read so far, of all."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self.open = self.chunks = 0

    async def one(self, number: int, tokens: int) -> None:
        """Open a stream and read it to its end."""
        port = self._ports[number % len(self._ports)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(Work("bench", 1, 1, 10, tokens), port, number))
        await reader.readuntil(b"\r\n\r\n")
        self.open += 1
        while data := await reader.read(1 << 16):
            self.chunks += data.count(b"data: {")


async def opened(ports: Sequence[int], pids: Sequence[int], count: int, window: float) -> tuple[float, int]:
    """CPU microseconds per token in a window in which `count` streams are open, and MB then, of all processes."""
    streams = Streams(ports)
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
            value, most = asyncio.run(opened([ours.server.port], [ours.server.ingress], count, window))
        finally:
            ours.stop()
        values = [value]
        if alone:
            with sends.started(STREAMS * 1000 / PACE_MS) as (port, pid):
                values.append(asyncio.run(opened([port], [pid], count, window))[0])
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
    parser.add_argument("--apart", action="store_true", help="compare with as many servers of one process, too")
    parser.add_argument("--in-flight", type=int, default=16, help="unary requests at a time, for each process")
    parser.add_argument("--streams", type=int, nargs="*", default=[64, 5000])
    parser.add_argument("--sends", action="store_true", help="a server that only sends alongside, for --streams")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--window", type=float, default=10.0, help="seconds for which open streams are measured")
    a = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if a.processes:
        processes(a)
    if a.streams:
        many(a.model, a.streams, a.window, alone=a.sends)


if __name__ == "__main__":
    main()
