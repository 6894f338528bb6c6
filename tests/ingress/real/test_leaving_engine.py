"""A client that leaves in mid-stream: its slot in the engine is free, through every part that lies between."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from dynamod.engine.echo import DELAY
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.table import make_server
from tests.ports import listener

LINGER = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # close by reset


def request(model: str, stream: bool, n: int) -> bytes:
    body: dict[str, Any] = {"model": model, "n": n, "stream": stream}
    body["messages"] = [{"role": "user", "content": "slot " * 300}]
    return json.dumps(body).encode()


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("model", ["sample", "text"])
async def test_the_slot_is_freed(house, words, pace, connect, until, record_property, model, stream, reset) -> None:
    pace.setenv(DELAY, "10")
    await house.start()
    member = await house.worker(words.EchoCore if model == "sample" else words.EchoFull, model)
    await until(lambda: model in house.processor.cards)
    server = make_server(FrontendSettings(host="127.0.0.1", port=0), house.backend)
    await server.start(listener(), spawn=asyncio.create_task)
    engine = member.engine
    times = []
    try:
        for _ in range(5):
            client = await connect(server)
            client.post("/v1/chat/completions", request(model, stream, 3))
            tokens = engine.statistics().tokens
            await until(lambda tokens=tokens: engine.statistics().tokens > tokens + 6)
            assert engine.statistics().running == 3
            if reset:
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            left = time.perf_counter()
            client.writer.close()
            await until(lambda: engine.statistics().running == 0)
            times.append((time.perf_counter() - left) * 1000)
            assert member.open == 0
            await until(lambda: not server.inflight)
            assert house.processor.statistics().flights == 0
    finally:
        await server.stop(0)
    loop = type(asyncio.get_running_loop()).__module__.split(".")[0]
    record_property("slot_freed_ms", times)
    print(f"{model} {loop}: free after {', '.join(f'{t:.1f}' for t in times)} ms (a step takes 10 ms)")
    assert member.actor.statistics().cancelled == 15
