"""Who gets a request: `receive` never blocks and never raises."""

import asyncio
from dataclasses import dataclass
from typing import Any

from dynamod.actor import Actor, System, handle
from dynamod.engine.base import Job
from dynamod.message.worker import LEAVING, Call
from dynamod.runtime.dispatcher import EndpointDispatcher


class Reader:
    """A reply that remembers how it ended."""

    def __init__(self) -> None:
        self.ended: tuple[str, str, bool] | None = None
        self.code: str | None = None

    def failed(
        self, error: str, message: str, *, param: str | None = None, retry: bool = False, code: str | None = None
    ) -> None:
        self.ended, self.code = (error, message, retry), code


@dataclass(frozen=True)
class Special:
    request: Any
    reply: Any


class Slow(Actor):
    mailbox_capacity = 2

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.go = asyncio.Event()

    @handle
    async def job(self, message: Job) -> None:
        await self.go.wait()
        self.taken.append(message.request)

    @handle
    async def special(self, message: Special) -> None:
        self.taken.append(("special", message.request))


async def test_a_request_goes_where_it_belongs_or_is_refused_for_another_try() -> None:
    endpoints = EndpointDispatcher()
    async with System() as system, asyncio.timeout(5):
        actor = Slow()
        ref = system.start("slow", lambda: actor, restart="temporary")
        await system.ready(ref, timeout=1)
        nobody = Reader()
        endpoints.receive("a.b.c", Call("0"), nobody)  # type: ignore[arg-type]
        assert nobody.ended == ("Overloaded", "a.b.c is not served here", True)

        endpoints.add("a.b.c", ref)
        endpoints.add("a.b.special", ref, Special)
        assert endpoints.places() == ["a.b.c", "a.b.special"]
        readers = [Reader() for _ in range(5)]
        for number, reader in enumerate(readers):
            endpoints.receive("a.b.c", Call(str(number)), reader)  # type: ignore[arg-type]
        refused = [reader.ended for reader in readers if reader.ended]
        assert refused
        assert all(end == ("Overloaded", "the mailbox of a.b.c is full", True) for end in refused)
        actor.go.set()
        while len(actor.taken) + len(refused) < len(readers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        endpoints.receive("a.b.special", Call("x"), Reader())  # type: ignore[arg-type]
        while ("special", Call("x")) not in actor.taken:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        endpoints.remove("a.b.special")
        endpoints.remove("a.b.special")
        assert endpoints.places() == ["a.b.c"]
        await system.root.stop_child("slow")
        gone = Reader()
        endpoints.receive("a.b.c", Call("y"), gone)  # type: ignore[arg-type]
        assert gone.ended is not None
        assert gone.ended[0] == "Overloaded"
        assert gone.ended[2]
        assert gone.code == LEAVING
