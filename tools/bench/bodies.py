#!/usr/bin/env python3
"""The worst gap of another stream while one body of 45 MB arrives, for bodies of all shapes.

bodies.py [--model FOLDER] [--engine echo_core] [--size 44] [--row PART]

Starts `dynamo serve`, streams answers of 200 tokens per second, and meanwhile sends each body from another
process. With `--engine echo_full` the bodies go on to an engine that takes
text.
"""

import argparse
import http.client
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

from streams import Ours

HI = b'"messages":[{"role":"user","content":"hi"}]'
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(head: bytes, one: bytes, tail: bytes) -> Callable[[int], tuple[str, bytes]]:
    """A body that repeats `one` between head and tail until it has about so many bytes."""
    return lambda size: (CHAT, head + one * ((size - len(head) - len(tail)) // len(one)) + tail)


def keys(size: int) -> tuple[str, bytes]:
    """Unknown keys, all different."""
    return CHAT, b"{" + b",".join(b'"%d":1' % place for place in range(size // 11)) + b"," + HI + b"}"


def ids(size: int) -> tuple[str, bytes]:
    """Token ids."""
    return COMPLETIONS, b'{"max_tokens":1,"prompt":[' + b"17," * (size // 3) + b"1]}"


def batch(size: int) -> tuple[str, bytes]:
    """As many values as are decoded, in lists of a thousand ids."""
    one = b"[" + b"17," * 999 + b"1]"
    return COMPLETIONS, b'{"max_tokens":1,"prompt":[' + b",".join([one] * 1990) + b"]}"


MESSAGE = b'{"role":"user","content":"hi"},'
PARTED = b'{"role":"user","content":[{"type":"text","text":"hi"}]},'
TOOL = b'{"type":"function","function":{"name":"f"}},'
START, END = b'{"max_tokens":1,"messages":[', b'{"role":"user","content":"hi"}]}'
SHAPES: dict[str, Callable[[int], tuple[str, bytes]]] = {
    "nothing": lambda _: (CHAT, b'{"max_tokens":1,' + HI + b"}"),
    "unknown keys": keys,
    "token ids": ids,
    "2 million ids": batch,
    "messages": chat(START, MESSAGE, END),
    "18,000 messages": lambda _: (CHAT, START + MESSAGE * 18_000 + END),
    "10,000 messages of parts": lambda _: (CHAT, START + PARTED * 10_000 + END),
    "tools": chat(b"{" + HI + b',"tools":[', TOOL, TOOL[:-1] + b"]}"),
    "one text": chat(b'{"max_tokens":1,"messages":[{"role":"user","content":"', b"some words ", b'"}]}'),
    "one text, 4 million escapes": lambda _: (
        CHAT,
        START + b'{"role":"user","content":"' + b"\\na" * 4_000_000 + b'"}]}',
    ),
    "one text, only escapes": chat(b'{"messages":[{"role":"user","content":"', b"\\n", b'"}]}'),
    "unknown text": chat(b"{" + HI + b',"x":"', b"some words ", b'"}'),
    "nested": chat(b"{" + HI + b',"x":', b"[", b""),
    "spaces": chat(b"{" + HI, b" ", b"}"),
    "a number": chat(b"{" + HI + b',"seed":', b"1", b"}"),
}


def send(port: int, path: str, body: bytes) -> tuple[int, str, float]:
    """Status, the error's message and the seconds it took."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    said = json.loads(text)["error"]["message"] if answer.status != 200 else ""
    return answer.status, said, time.perf_counter() - started


class Reader(Thread):
    """Streams one answer after the other and keeps the longest time between two chunks of one."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port, self.gap, self.over = port, 0.0, Event()

    def run(self) -> None:
        """Read until it is over."""
        body = json.dumps({"prompt": "a " * 900, "stream": True}).encode()
        while not self.over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
            last = 0.0
            for _ in self._chunks(connection.getresponse()):
                now = time.perf_counter()
                self.gap = max(self.gap, now - last if last else 0.0)
                last = now
                if self.over.is_set():
                    break
            connection.close()

    @staticmethod
    def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while data := answer.read1():
            yield data


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sample", help="folder with a tokenizer")
    parser.add_argument("--engine", default="echo_core")
    parser.add_argument("--size", type=int, default=44, help="MB of a body")
    parser.add_argument("--row", default="", help="part of a row's name")
    a = parser.parse_args()
    ours = Ours(a.model, 5.0, a.engine)
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for name, make in SHAPES.items():
                if a.row not in name:
                    continue
                path, body = make(a.size * 1_000_000)
                reader = Reader(ours.server.port)
                reader.start()
                time.sleep(1)
                before, reader.gap = reader.gap, 0.0
                status, said, took = pool.apply(send, (ours.server.port, path, body))
                time.sleep(0.2)
                gap = reader.gap
                reader.over.set()
                reader.join()
                print(
                    f"{name:28} {len(body) / 1e6:5.1f} MB: gap {gap * 1000:6.0f} ms (before {before * 1000:.0f}), "
                    f"{status} after {took:.2f} s {said[:70]}"
                )
    finally:
        ours.stop()


if __name__ == "__main__":
    main()
