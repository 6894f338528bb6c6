"""Adapters that clients load: all workers or none, those that come later, workers that are silent. Mocked workers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.discovery.keys import card_key, instance_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.features.lora.changes import AdapterChange, AdapterRecord
from dynamod.features.lora.ingress import AdapterLoader
from dynamod.ingress.parts import ProcessorContext
from dynamod.message.discovery import Adapter, Capabilities, Instance, ModelCard
from dynamod.message.errors import BadRequest, Overloaded, TimedOut
from dynamod.message.ingress import Failed, Items
from dynamod.message.worker import LoadAdapter

CARD = ModelCard("m", "text", capabilities=Capabilities(lora=True))
ONE = Adapter("x", "/one.gguf")


class Mocked:
    """Workers that load what is asked, or refuse it (`broken`), or say nothing (`silent`), and an ingress before them.

    `asked`: what came to which worker. `gone`: workers that have forgotten what they had loaded before. The digest of a
    file is its path's length. `late`: seconds until the ingress sees a card that a worker has changed.
    """

    def __init__(self) -> None:
        self.registry: Any = MemoryRegistry(random.Random(0))
        self.view = View(self.registry)
        self.broken, self.silent, self.gone = set[int](), set[int](), set[int]()
        self.asked: list[tuple[int, str]] = []
        self.cards: dict[str, ModelCard] = {}
        self.leases: dict[int, int] = {}
        self.late = 0.0
        self.tasks: list[Any] = []
        self.view.on_model(self._model)
        self.held: list[str] = []
        self.loader = self.make()
        self.changes = self.loader.changes

    def make(self, **more: Any) -> AdapterLoader:
        transport: Any = self
        unused: Any = None
        context = ProcessorContext(
            *(self.view, transport, lambda: self.cards, self._spawn, self.view.on_change, self._held, lambda: None),
            *(unused, unused, unused),
            reserved={"first"},
        )
        return AdapterLoader(context, clock=lambda: 7.0, **more)

    @asynccontextmanager
    async def _held(self, model: str) -> AsyncIterator[None]:
        self.held.append(model)
        try:
            yield
        finally:
            self.held.remove(model)

    def _model(self, name: str, card: ModelCard | None) -> None:
        if card is None:
            self.cards.pop(name, None)
        else:
            self.cards[name] = card

    def _spawn(self, work: Any, _name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def come(self, number: int, card: ModelCard = CARD) -> None:
        lease = self.leases[number] = self.registry.grant()
        instance = Instance("n", "c", "e", number, {}, process=f"g/Worker.{number}")
        self.registry.put(instance_key(instance), msgspec.json.encode(instance), lease)
        self._publish(instance, card)

    def _publish(self, instance: Instance, card: ModelCard) -> None:
        self.registry.put(card_key(instance), msgspec.json.encode(card), self.leases[instance.instance_id])

    def open(self, instance: Instance, request: Any, sink: Any) -> Any:
        number, what = instance.instance_id, type(request).__name__
        self.asked.append((number, what))
        if number not in self.silent:
            asyncio.get_running_loop().call_soon(self._do, instance, request, sink)
        return self

    def _change(self, instance: Instance, card: ModelCard) -> None:
        if self.late:
            asyncio.get_running_loop().call_later(self.late, self._publish, instance, card)
        else:
            self._publish(instance, card)

    def _do(self, instance: Instance, request: Any, sink: Any) -> None:
        items: tuple[bytes, ...] = ()
        if isinstance(request, LoadAdapter):
            if instance.instance_id in (self.gone if request.adapter.digest else self.broken):
                sink.delta(Failed.of(1, BadRequest("no adapter", param="lora_path")))
                return
            found = msgspec.structs.replace(request.adapter, digest=f"{len(request.adapter.path):x}")
            items = (msgspec.json.encode(found),)
            self._change(instance, msgspec.structs.replace(CARD, adapters=(found,)))
        else:
            self._change(instance, CARD)
        sink.delta(Items(1, 0, items, "stop"))

    def cancel(self) -> None: ...

    def having(self, name: str) -> list[int]:
        return sorted(one.instance_id for one in self.view.serving(name))


@virtual
async def test_all_workers_load_it_and_forget_it() -> None:
    mocked = Mocked()
    for number in (1, 2):
        mocked.come(number)
    await mocked.loader.load("m", ONE, inplace=False)
    assert mocked.having("x") == [1, 2]
    with pytest.raises(BadRequest, match="has already been loaded; load_inplace replaces it"):
        await mocked.loader.load("m", ONE, inplace=False)
    await mocked.loader.load("m", Adapter("x", "/another.gguf"), inplace=True)
    assert mocked.cards["x"].salt == "d"
    await mocked.loader.unload(mocked.cards["x"])
    assert (mocked.having("x"), sorted(mocked.cards)) == ([], ["m"])


@virtual
async def test_where_one_cannot_the_others_forget_it() -> None:
    mocked = Mocked()
    for number in (1, 2, 3):
        mocked.come(number)
    mocked.broken.add(2)
    with pytest.raises(BadRequest, match=r"^g/Worker.2: no adapter$") as caught:
        await mocked.loader.load("m", ONE, inplace=False)
    assert caught.value.param == "lora_path"
    assert mocked.having("x") == []
    assert mocked.asked[3:] == [(1, "UnloadAdapter"), (3, "UnloadAdapter")]


@virtual
async def test_a_failed_load_is_answered_when_the_ingress_knows_that_it_is_undone() -> None:
    mocked = Mocked()
    mocked.late = 1.0
    for number in (1, 2):
        mocked.come(number)
    mocked.broken.add(2)
    with pytest.raises(BadRequest, match=r"^g/Worker.2: no adapter$"):
        await mocked.loader.load("m", ONE, inplace=False)
    assert (mocked.having("x"), sorted(mocked.cards)) == ([], ["m"])
    changes: list[str] = []
    mocked.view.on_model(lambda name, _card: changes.append(name))
    await asyncio.sleep(5.0)
    assert changes == [], "no late record makes the adapter appear"


@virtual
async def test_a_failed_load_does_not_wait_for_ever_for_records_of_a_worker() -> None:
    mocked = Mocked()
    mocked.late = 1e6
    for number in (1, 2):
        mocked.come(number)
    mocked.broken.add(2)
    before = asyncio.get_running_loop().time()
    with pytest.raises(BadRequest, match=r"^g/Worker.2: no adapter$"):
        await mocked.loader.load("m", ONE, inplace=False)
    assert asyncio.get_running_loop().time() - before == pytest.approx(10.0)


@virtual
async def test_where_one_cannot_replace_it_the_others_have_the_one_before_again() -> None:
    mocked = Mocked()
    for number in (1, 2, 3):
        mocked.come(number)
    await mocked.loader.load("m", ONE, inplace=False)
    mocked.gone.add(4)
    mocked.come(4)
    await asyncio.gather(*mocked.tasks)
    before = mocked.cards["x"].adapter
    mocked.broken = {2}
    with pytest.raises(BadRequest, match=r"^g/Worker.2: no adapter$"):
        await mocked.loader.load("m", Adapter("x", "/another.gguf"), inplace=True)
    assert mocked.having("x") == [1, 2, 3], "the fourth had none, and has none again"
    assert mocked.cards["x"].adapter == before
    mocked.gone.add(3)
    text = r"^g/Worker.2: no adapter; not undone: g/Worker.3: no adapter$"
    with pytest.raises(BadRequest, match=text):
        await mocked.loader.load("m", Adapter("x", "/another.gguf"), inplace=True)
    await asyncio.gather(*mocked.tasks)


@virtual
async def test_a_worker_that_says_nothing_is_told_to_forget_it_too() -> None:
    mocked = Mocked()
    for number in (1, 2):
        mocked.come(number)
    mocked.silent.add(2)
    with pytest.raises(TimedOut, match=r"g/Worker.2 did not answer within 120 s"):
        await mocked.loader.load("m", ONE, inplace=False)
    await asyncio.sleep(0)
    assert sorted(mocked.asked[2:]) == [(1, "UnloadAdapter"), (2, "UnloadAdapter")], "it may have loaded it since"
    await asyncio.gather(*mocked.tasks)


@virtual
async def test_a_worker_that_comes_later_is_told_once() -> None:
    mocked = Mocked()
    mocked.come(1)
    await mocked.loader.load("m", ONE, inplace=False)
    mocked.come(2)
    mocked.gone.add(3)
    mocked.come(3)
    await asyncio.gather(*mocked.tasks)
    mocked.come(4, msgspec.structs.replace(CARD, adapters=(Adapter("x", "/mine", "9"),)))
    assert mocked.having("x") == [1, 2, 4]
    assert [number for number, _ in mocked.asked] == [1, 2, 3]
    await mocked.loader.unload(mocked.cards["x"])
    count = len(mocked.tasks)
    mocked.come(5)
    assert len(mocked.tasks) == count


@virtual
async def test_what_others_have_loaded_is_told_to_workers_that_lack_it() -> None:
    mocked = Mocked()
    for number in (1, 2):
        mocked.come(number)
    mocked.changes.merge(AdapterRecord((AdapterChange("m", Adapter("x", "/one.gguf", "8"), 1.0),)))
    await asyncio.gather(*mocked.tasks)
    assert mocked.having("x") == [1, 2]
    mocked.come(2)  # anew, at the same address, as static workers do
    await asyncio.gather(*mocked.tasks)
    assert mocked.having("x") == [1, 2]
    assert [number for number, _ in mocked.asked] == [1, 2, 2]
    mocked.changes.merge(AdapterRecord((AdapterChange("m", Adapter("x", "/one.gguf", "8"), 2.0, loaded=False),)))
    mocked.come(3)
    assert len(mocked.asked) == 3


@virtual
async def test_a_change_is_kept_before_it_is_said_to_be_done() -> None:
    mocked = Mocked()
    mocked.come(1)
    kept: list[Any] = []

    async def keep() -> None:
        kept.append([(one.adapter.path, one.at, one.loaded) for one in loader.changes.of("m")])

    loader = mocked.make(keep=keep)
    await loader.load("m", ONE, inplace=False)
    await loader.unload(mocked.cards["x"])
    mocked.broken.add(1)
    with pytest.raises(BadRequest):
        await loader.load("m", ONE, inplace=False)
    assert kept == [[("/one.gguf", 7.0, True)], [("/one.gguf", 7.001, False)]]


@virtual
async def test_what_cannot_be_is_refused() -> None:
    mocked = Mocked()
    with pytest.raises(BadRequest, match="loads no LoRA adapters"):
        await mocked.loader.load("m", ONE, inplace=False)
    mocked.come(1)
    mocked.come(2, ModelCard("other", "text"))
    with pytest.raises(BadRequest, match="'other' is that of another model"):
        await mocked.loader.load("m", Adapter("other", "/one.gguf"), inplace=True)
    with pytest.raises(BadRequest, match="'first' is that of another model"):
        await mocked.loader.load("m", Adapter("first", "/one.gguf"), inplace=True)
    with pytest.raises(BadRequest, match="engine of model 'other' loads no LoRA adapters"):
        await mocked.loader.load("other", ONE, inplace=False)
    mocked.cards["gone"] = msgspec.structs.replace(CARD, name="gone")
    with pytest.raises(Overloaded, match="No instance of model 'gone' is ready"):
        await mocked.loader.load("gone", ONE, inplace=False)
    mocked.silent.add(1)
    with pytest.raises(TimedOut, match=r"g/Worker.1 did not answer within 120 s"):
        await mocked.loader.load("m", ONE, inplace=False)
    await asyncio.gather(*mocked.tasks)


@virtual
async def test_the_model_is_held_until_its_adapter_is_there() -> None:
    mocked = Mocked()
    mocked.come(1)
    mocked.silent.add(1)
    loading = asyncio.ensure_future(mocked.loader.load("m", ONE, inplace=False))
    await asyncio.sleep(1)
    assert mocked.held == ["m"]
    with pytest.raises(TimedOut):
        await loading
    assert mocked.held == []
    await asyncio.gather(*mocked.tasks)
