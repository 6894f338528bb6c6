#!/usr/bin/env python3
"""Closed-loop load on an OpenAI endpoint over raw sockets, cheap enough to share two cores with the server.

load.py --port 8000 --model m --pids 1234,1235 --requests 128 --streams 64 --words 10 --tokens 500

Prints requests, errors, tokens and time to the first token, then for each process of `--pids` its CPU time per token
and per request and its memory. CPU time per token can be compared between servers on a noisy machine, wall time cannot;
compare it at about one chunk per token, since a server that merges tokens into fewer chunks has less to do.
Every request asks for exactly `--tokens` tokens (`ignore_eos`, `min_tokens`).
"""

import argparse
import asyncio
import json
import os
import random
import re
import time
from dataclasses import dataclass, field

WORDS = "system request token model worker router cache block prefix decode stream value index layer memory".split()  # noqa: SIM905
USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Work:
    """What is asked: `requests` in all, `streams` at a time, prompts of `words` words, answers of `tokens` tokens.

    `key`: of the API; empty: none.
    """

    model: str
    requests: int
    streams: int
    words: int
    tokens: int
    unary: bool = False
    key: str = ""


@dataclass
class Result:
    """What came. Times in seconds; `cpu` is user and system time per process."""

    tokens: int = 0
    chunks: int = 0
    errors: int = 0
    wall: float = 0.0
    first: list[float] = field(default_factory=list)
    cpu: dict[int, float] = field(default_factory=dict)
    rss: dict[int, int] = field(default_factory=dict)

    def ttft(self, part: float) -> float:
        """A percentile of the time to the first token, in milliseconds."""
        times = sorted(self.first) or [float("nan")]
        return times[min(len(times) - 1, int(len(times) * part))] * 1e3

    def us_per_token(self, pid: int) -> float:
        """CPU microseconds of a process per token of the answers (by the server's own count)."""
        return self.cpu[pid] / max(self.tokens, 1) * 1e6

    def ms_per_request(self, pid: int) -> float:
        """CPU milliseconds of a process per request."""
        return self.cpu[pid] / max(len(self.first), 1) * 1e3


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss(pid: int) -> int:
    """Resident memory in MB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE // 2**20


def request_bytes(work: Work, port: int, number: int) -> bytes:
    """One request; its prompt follows from its number."""
    draw = random.Random(number)
    body = {
        "model": work.model,
        "stream": not work.unary,
        "max_tokens": work.tokens,
        "min_tokens": work.tokens,
        "ignore_eos": True,
        **({} if work.unary else {"stream_options": {"include_usage": True}}),
        "messages": [{"role": "user", "content": " ".join(draw.choice(WORDS) for _ in range(work.words))}],
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
    if work.key:
        head += f"Authorization: Bearer {work.key}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def run(port: int, work: Work, pids: list[int]) -> Result:
    """Do the work; every request is answered or counted as an error."""
    result = Result()
    numbers = list(range(work.requests))
    before = {pid: cpu_seconds(pid) for pid in pids}
    begun = time.perf_counter()
    await asyncio.gather(*(_client(port, work, numbers, result) for _ in range(work.streams)))
    result.wall = time.perf_counter() - begun
    result.cpu = {pid: cpu_seconds(pid) - before[pid] for pid in pids}
    result.rss = {pid: rss(pid) for pid in pids}
    return result


async def _client(port: int, work: Work, numbers: list[int], result: Result) -> None:
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while numbers:
        number = numbers.pop()
        try:
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            async with asyncio.timeout(120):
                begun = time.perf_counter()
                writer.write(request_bytes(work, port, number))
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head.split(b"\r\n", 1)[0]:
                    raise ConnectionError(head.decode(errors="replace").split("\r\n", 1)[0])
                await (_unary if work.unary else _stream)(reader, head, begun, result)
        except (OSError, EOFError, TimeoutError) as error:
            result.errors += 1
            if result.errors <= 3:
                print(f"request {number}: {type(error).__name__}: {error}")
            if writer is not None:
                writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


async def _unary(reader: asyncio.StreamReader, head: bytes, begun: float, result: Result) -> None:
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    if length is not None:
        body = await reader.readexactly(int(length.split(b":")[1]))
    else:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    result.first.append(time.perf_counter() - begun)
    result.tokens += json.loads(body)["usage"]["completion_tokens"]


async def _stream(reader: asyncio.StreamReader, head: bytes, begun: float, result: Result) -> None:
    first, chunks, tail, end = 0.0, 0, b"", b""
    while True:
        data = await reader.read(1 << 16)
        if not data:
            raise ConnectionError("the stream was closed early")
        if not first and b'"content"' in data:
            first = time.perf_counter() - begun
        data = tail + data
        chunks += data.count(b"data: {")
        end = (end + data)[-1024:]
        tail = b"" if data.endswith(b"data: {") else data[-6:]
        if data.endswith(b"0\r\n\r\n"):
            break
    result.first.append(first or time.perf_counter() - begun)
    result.chunks += chunks
    if (found := USAGE.search(end)) is not None:
        result.tokens += int(found[1])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="sample")
    parser.add_argument("--pids", default="", help="server processes to measure, comma separated")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--words", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--unary", action="store_true")
    a = parser.parse_args()
    work = Work(a.model, a.requests, a.streams, a.words, a.tokens, a.unary)
    pids = [int(word) for word in a.pids.split(",") if word]
    result = asyncio.run(run(a.port, work, pids))
    print(
        f"requests={len(result.first)} errors={result.errors} wall_s={result.wall:.2f} tokens={result.tokens} "
        f"chunks={result.chunks} "
        f"ttft_ms p50={result.ttft(0.5):.1f} p99={result.ttft(0.99):.1f}"
    )
    for pid in pids:
        print(
            f"  pid={pid} us_per_token={result.us_per_token(pid):.2f} ms_per_request={result.ms_per_request(pid):.3f} "
            f"rss_mb={result.rss[pid]}"
        )


if __name__ == "__main__":
    main()
