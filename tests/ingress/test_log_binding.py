"""Log lines written while a request is served carry its id; those before and after do not."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dynamod.http.server import Server
from dynamod.observe.lines import fields

log = logging.getLogger("dynamod.test")
CHAT = b'{"model":"org/model","messages":[{"role":"user","content":"hi"}]%s}'


class Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append((record.getMessage(), fields(record).get("x_request_id")))


@pytest.mark.parametrize("more", [b"", b',"stream":true'])
async def test_lines_of_a_request_carry_its_id(
    server: Server, backend: Any, connect: Callable[[Server], Awaitable[Any]], more: bytes
) -> None:
    keeper = Keeper()
    log.addHandler(keeper)
    begin = backend.start

    async def start(job: Any, sink: Any) -> Any:
        log.warning("begins")
        return await begin(job, sink)

    async def play(job: Any, sink: Any) -> None:
        log.warning("plays")
        await backend.say(job, sink)

    backend.start, backend.play = start, play
    try:
        client = await connect(server)
        for name in ("id-1", "id-2"):  # two requests of one connection, and so of one task
            client.post("/v1/chat/completions", CHAT % more, x_request_id=name)
            status, headers = await client.head()
            assert status == 200
            await (client.chunks() if more else client.body(headers))
        log.warning("outside")
    finally:
        log.removeHandler(keeper)
    expected = [(word, name) for name in ("id-1", "id-2") for word in ("begins", "plays")]
    assert keeper.kept == [*expected, ("outside", None)]
