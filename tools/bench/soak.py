#!/usr/bin/env python3
"""Memory of an ingress and a worker during many mixed requests.

soak.py [--model FOLDER] [--requests 200000] [--clients 32] [--every 10000] [--engine echo_core]

Short and long prompts, most of them new, streamed and in one piece. One in ten is refused. One in ten is left by its
client in the middle of the stream. Prints the memory of both processes every so many requests, then how much the
ingress has grown since the first quarter, and what its bounded structures hold.
"""

import argparse
import asyncio
import json
import random
import subprocess
import time

from load import WORDS, rss
from streams import Ours

CHAT = "/v1/chat/completions"


def request(number: int) -> tuple[bytes, bool]:
    """A request, and whether its client leaves after the first token."""
    draw, kind = random.Random(number), number % 10
    words = 600 if kind == 7 else 20
    text = " ".join(draw.choice(WORDS) for _ in range(words))
    body: dict[str, object] = {
        "model": "bench" if kind != 8 else f"unknown-{number}",
        "messages": [{"role": "user", "content": f"{number} {text}" if kind != 6 else "the same"}],
        "max_tokens": 200 if kind == 9 else 8,
        "stream": kind in (3, 4, 5, 9),
    }
    if kind == 2:
        body |= {"user": f"user-{number}", "metadata": {"number": str(number)}}
    data = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nx-request-id: soak-{number}\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, kind == 9


class Soak:
    """Clients that take numbers of requests until there are none. `statuses`: how many answers of each."""

    def __init__(self, port: int, requests: int) -> None:
        self._port, self._numbers = port, iter(range(requests))
        self.done = 0
        self.statuses: dict[str, int] = {}

    async def client(self) -> None:
        """Ask one request after the other on one connection, and on another where it has left."""
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        for number in self._numbers:
            data, leaves = request(number)
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            writer.write(data)
            async with asyncio.timeout(60):
                status = await self._answer(reader, leaves)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self.done += 1
            if leaves:
                writer.close()
                reader = writer = None
        if writer is not None:
            writer.close()

    @staticmethod
    async def _answer(reader: asyncio.StreamReader, leaves: bool) -> str:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"content-length:" in head:
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        else:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
                if leaves:
                    return "left"
            await reader.readexactly(2)
        return head.split(b" ", 2)[1].decode()


async def soaked(ours: Ours, requests: int, clients: int, every: int) -> list[int]:
    """The memory of the ingress in MB after each `every` requests."""
    soak, found, begun = Soak(ours.server.port, requests), list[int](), time.monotonic()
    tasks = [asyncio.create_task(soak.client()) for _ in range(clients)]
    while len(found) < requests // every:
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done() and task.exception() is not None:
                raise SystemExit(f"a client failed: {task.exception()!r}")
        if soak.done >= every * (len(found) + 1):
            found.append(rss(ours.server.ingress))
            seconds = time.monotonic() - begun
            worker = rss(ours.server.worker)
            print(f"{soak.done:7} requests, {seconds:5.0f} s: ingress {found[-1]} MB, worker {worker} MB", flush=True)
    await asyncio.gather(*tasks)
    print("answers: " + ", ".join(f"{status} {count}" for status, count in sorted(soak.statuses.items())))
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--engine", default="echo_core")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--every", type=int, default=10_000)
    a = parser.parse_args()
    ours = Ours(a.model, 1.0, a.engine)
    try:
        found = asyncio.run(soaked(ours, a.requests, a.clients, a.every))
        quarter = found[max(0, len(found) // 4 - 1)]
        print(f"ingress: {quarter} MB after a quarter, {found[-1]} MB in the end, {found[-1] - quarter:+} MB")
        subprocess.run([*Ours.dynamo(), "doctor", "memory"], env=ours.env, check=False)
    finally:
        ours.stop()


if __name__ == "__main__":
    main()
