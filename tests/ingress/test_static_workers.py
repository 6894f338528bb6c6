"""Static workers: found by asking, gone when they do not answer, with the files that are known here."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from dynamod.actor.testing import virtual
from dynamod.discovery.view import View
from dynamod.ingress.static_workers import MISSED, StaticWorkers, describe
from dynamod.message.discovery import Adapter, Instance, ModelCard
from dynamod.message.ingress import Failed, Items
from dynamod.message.worker import Describe

HERE = ModelCard("name", path="/here", mdc_sum="x", context_length=100)
THERE = ModelCard("other", "tokens", path="/there", mdc_sum="x", context_length=64, kv_cache_block_size=32, engine="e")
INSTANCE = Instance("n", "c", "e", 1, {"nats": "subject"})


class Registry:
    """Nothing in it."""

    def watch(self, _prefix: str, _watcher: Any) -> None: ...


class Transport:
    """Answers with `say(sink)`."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        self.say, self.cancelled = say, 0

    def open(self, instance: Instance, request: Any, sink: Any) -> Any:
        assert isinstance(request, Describe)
        self.say(sink)
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    async def close(self) -> None: ...


def answers(card: ModelCard) -> Callable[[Any], None]:
    return lambda sink: sink.delta(Items(1, 0, (msgspec.json.encode(card),), "stop"))


def silent(_sink: Any) -> None: ...


@virtual
async def test_it_comes_and_goes() -> None:
    view, transport = View(Registry()), Transport(silent)  # type: ignore[arg-type]
    static = StaticWorkers(view, transport, HERE, lambda: [INSTANCE])
    told: list[Any] = []
    view.on_model(lambda name, card: told.append((name, card)))
    await static.look()
    assert view.models() == {}
    transport.say = answers(THERE)
    await static.look()
    card = view.models()["name"]
    assert (card.path, card.context_length, card.kv_cache_block_size, card.engine) == ("/here", 64, 32, "e")
    assert view.serving("name") == [INSTANCE]
    await static.look()
    assert len(told) == 1
    transport.say = lambda sink: sink.lost("no responders")
    for _ in range(MISSED - 1):
        await static.look()
    assert view.serving("name") == [INSTANCE], "one lost message is no death"
    await static.look()
    assert view.models() == {}
    assert view.all_instances() == []
    assert told[1] == ("name", None)
    transport.say = answers(THERE)
    await static.look()
    assert view.serving("name") == [INSTANCE]


@virtual
async def test_adapters_that_change_are_seen() -> None:
    one = msgspec.structs.replace(THERE, adapters=(Adapter("x", "/x", "a"),))
    view, transport = View(Registry()), Transport(answers(one))  # type: ignore[arg-type]
    static = StaticWorkers(view, transport, HERE, lambda: [INSTANCE])
    await static.look()
    assert view.models()["x"].parent == "name"
    assert view.serving("x") == [INSTANCE]
    transport.say = answers(THERE)
    await static.look()
    assert list(view.models()) == ["name"]
    transport.say = silent
    for _ in range(MISSED):
        await static.look()
    transport.say = answers(THERE)
    await static.look()
    assert list(view.models()) == ["name"]


@virtual
async def test_an_answer_that_makes_no_sense_is_none() -> None:
    assert await describe(Transport(lambda sink: sink.delta(Items(1, 0, (b"{",), "stop"))), INSTANCE) is None
    assert await describe(Transport(lambda sink: sink.delta(Failed(1, "NotFound", "no"))), INSTANCE) is None
    transport = Transport(silent)
    begun = asyncio.get_running_loop().time()
    assert await describe(transport, INSTANCE, timeout=2.0) is None
    assert asyncio.get_running_loop().time() - begun == 2.0
    assert transport.cancelled == 1


@virtual
async def test_other_files_are_told_of(caplog: Any) -> None:
    view = View(Registry())  # type: ignore[arg-type]
    static = StaticWorkers(
        view, Transport(answers(msgspec.structs.replace(THERE, mdc_sum="y"))), HERE, lambda: [INSTANCE]
    )
    await static.look()
    assert "model files of /here differ from the files of the worker at dyn://n.c.e" in caplog.text
    assert view.card("name") is not None
