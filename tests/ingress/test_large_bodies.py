"""Large bodies: the event loop goes on meanwhile, one budget holds for all of them, and memory goes back."""

import asyncio
import json
from time import perf_counter

import pytest

from dynamod.http import body as body_module
from dynamod.http.body import BodyBudget
from dynamod.ingress.api import endpoint
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import Overloaded

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = b'"messages":[{"role":"user","content":"hi"}]'
SMALL = b"{" + HI + b"}"
SHAPES = {
    "unknown keys": lambda: (
        CHAT,
        b"{" + HI + b"," + b",".join(b'"%d":1' % place for place in range(1_500_000)) + b"}",
    ),
    "messages": lambda: (CHAT, b'{"messages":[' + b'{"role":"user","content":"hi"},' * 600_000 + b"1]}"),
    "token ids": lambda: (COMPLETIONS, b'{"prompt":[' + b"1," * 7_000_000 + b"1]}"),
    "tools": lambda: (CHAT, b"{" + HI + b',"tools":[' + b'{"type":"function"},' * 900_000 + b"1]}"),
    "one text": lambda: (CHAT, b'{"messages":[{"role":"user","content":"' + b"word " * 4_000_000 + b'"}]}'),
    "nested": lambda: (CHAT, b"{" + HI + b',"x":' + b"[" * 20_000_000),
    "most values": lambda: (COMPLETIONS, b'{"prompt":[' + b"1," * 1_990_000 + b"1]}"),
    "most parts": lambda: (CHAT, b"{" + HI + b"," + b",".join(b'"%d":"x"' % place for place in range(60_000)) + b"}"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["tokens", "text"])
async def test_the_loop_goes_on_while_a_large_body_is_read(server, backend, connect, shape, kind) -> None:
    backend.cards = {"m": ModelCard(name="m", kind=kind)}
    gaps: list[float] = []

    async def tick() -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(0.005)
            gaps.append(perf_counter() - last)
            last = perf_counter()

    path, body = SHAPES[shape]()
    client = await connect(server)
    ticking = asyncio.get_running_loop().create_task(tick())
    client.post(path, body)
    async with asyncio.timeout(30):
        status, headers = await client.head(30)
        await client.body(headers)
    ticking.cancel()
    assert status in (200, 400)
    assert max(gaps) < 1.0  # 0.1 on a quiet machine; 3 and more when the loop decodes


async def refused(client) -> None:
    status, headers = await client.head()
    assert (status, headers["retry-after"]) == (503, "5")
    assert json.loads(await client.body(headers))["error"]["code"] == "bodies_limit"


async def test_bodies_on_their_way_share_a_budget(serve, backend, connect, until, monkeypatch) -> None:
    monkeypatch.setattr(body_module, "_NOTABLE", 1000)
    monkeypatch.setattr(body_module, "_LATER", 0.05)
    trimmed: list[bool] = []
    monkeypatch.setattr(endpoint, "trim_memory", lambda collect: trimmed.append(collect))
    server = await serve(body_limit_mb=1, bodies_limit_mb=1.5)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    large = SMALL + b" " * 900_000

    def upload(client) -> None:
        client.writer.write(head % len(large) + large[:-1])

    first, second = await connect(server), await connect(server)
    upload(first)
    await asyncio.sleep(0.1)
    upload(second)
    await refused(second)
    small = await connect(server)
    small.post(CHAT, SMALL)
    assert (await small.head())[0] == 200
    first.writer.write(large[-1:])
    assert (await first.head())[0] == 200
    await until(lambda: trimmed == [False])
    third = await connect(server)
    upload(third)  # what was taken is given back, also by those that were refused
    await asyncio.sleep(0.1)
    third.writer.close()  # and by clients that leave
    await third.writer.wait_closed()
    await until(lambda: len(trimmed) == 2)
    last = await connect(server)
    last.post(CHAT, large)
    assert (await last.head())[0] == 200


async def test_the_budget_counts() -> None:
    freed: list[int] = []
    budget = BodyBudget(1_000_000, lambda: freed.append(1))
    with budget.share() as one, budget.share() as other:
        one.grow(60_000)
        assert budget.used == 0
        one.grow(600_000)
        one.grow(700_000)
        with pytest.raises(Overloaded):
            other.grow(400_000)
        other.grow(300_000)
        assert budget.used == 1_000_000
    assert (budget.used, freed) == (0, [])
