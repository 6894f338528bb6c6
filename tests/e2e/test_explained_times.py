"""`dynamo explain` says where the time of a request went: the sum of the phases is the time of its client."""

import contextlib
import json
import os
import socket
import statistics
import struct
import time
from typing import Any, Self

from dynamod.observe.timeline import PHASES

RECEIVED = 35
"""SO_TIMESTAMPNS: the kernel says when data has come, whenever the test gets to read it."""
TIME = struct.Struct("@ll")
REQUESTS = 9
ROUNDS = 6
WITHIN_MS = 1.0
BODY = {"model": "sample", "messages": [{"role": "user", "content": "where did the time go?"}], "max_tokens": 12}


class Clocked:
    """A connection whose requests are timed at the socket: before the first byte goes, when the last one is here."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, RECEIVED, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, request: str, parts: int = 1, **more: Any) -> float:
        """Milliseconds of a request that comes in so many parts, 20 ms after each other."""
        body = json.dumps(BODY | more).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        data = f"{head}x-request-id: {request}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        size = -(-len(data) // parts)
        began = time.time_ns()
        for first in range(0, len(data), size):
            if first:
                time.sleep(0.02)
            self.sock.sendall(data[first : first + size])
        got, came = b"", 0
        while not _whole(got):
            piece, notes, _, _ = self.sock.recvmsg(65536, 64)
            assert piece, got
            got += piece
            seconds, rest = TIME.unpack(notes[0][2])
            came = seconds * 1_000_000_000 + rest
        assert got.startswith(b"HTTP/1.1 200"), got
        return (came - began) / 1e6


def _whole(got: bytes) -> bool:
    head, _, body = got.partition(b"\r\n\r\n")
    if b"chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return bool(length) and len(body) == int(length[0].split(b":")[1])


def explained(machine: Any, request: str) -> dict[str, Any]:
    result = machine.run("dynamo", "explain", request, "--output", "json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)[0]["times"]
    assert not found["open"]
    assert abs(sum(found["phases_ms"].values()) - found["total_ms"]) < 0.02
    return found


def test_the_phases_are_the_time_of_the_client(machine: Any) -> None:
    """Within a millisecond, the middle request of each kind: what no phase had would be missing of all of them.

    While other programs have the cores, the frontend is woken late, which no record can have: then the test asks again.
    """
    command = machine.start("dynamo", "serve", "graphs.agg:Frontend", "--Frontend.port=0", "--Worker.engine=mocker")
    client = machine.closing(Clocked(command.ready()))
    client.ask("warm", stream=True)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, machine.row("Frontend")["pid"], -20)
    for kind, more in {"stream": {"stream": True}, "whole": {}, "slow": {"parts": 3}}.items():
        differences: list[float] = []
        for turn in range(ROUNDS):
            took = {name: client.ask(name, **more) for name in [f"{kind}-{turn}-{one}" for one in range(REQUESTS)]}
            told = {name: explained(machine, name) for name in took}
            differences = [took[name] - told[name]["total_ms"] for name in took]
            if statistics.median(map(abs, differences)) < WITHIN_MS:
                break
        else:
            raise AssertionError(f"{kind}: {differences}")
        phases = {name: statistics.median(one["phases_ms"][name] for one in told.values()) for name in PHASES}
        assert (phases["receive"] > 30) == (kind == "slow"), phases
        assert all(phases[name] > 0 for name in ("queue", "preprocess", "route", "transport", "prefill", "decode"))
        assert (phases["first_token"] > 0) == (kind == "stream"), phases
    shown = machine.run("dynamo", "explain", "stream-0-0").out
    assert "PHASE" in shown
    assert "decode" in shown
    command.end()
