"""The node's registry: leases, watchers, the link over a real socket, the view."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dynamod import __version__
from dynamod.actor import System
from dynamod.daemon.link import Connection, LinkServer
from dynamod.discovery import link as link_impl
from dynamod.discovery.keys import Address, card_key, instance_key
from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.node import Hello, Refused, State
from dynamod.message.protocol import PROTOCOL


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("dyn://llama3B.backend.generate", "llama3B.backend.generate"),
        ("dyn://test", "test.backend.generate"),
        ("llama3B_pool", "llama3B_pool.backend.generate"),
        ("dyn://qwen3-32b.prefill", "qwen3-32b.prefill.generate"),
    ],
)
def test_addresses_with_defaults(text: str, address: str) -> None:
    assert str(Address.parse(text)) == address


@pytest.mark.parametrize("text", ["", "dyn://", "a.b.c.d", "dyn://a..b", "dyn://a b"])
def test_what_is_no_address_is_said_so(text: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        Address.parse(text)


def instance(number: int, component: str = "backend", **kwargs: object) -> Instance:
    return Instance("ns", component, "generate", number, {"unix": f"/tmp/{number}"}, **kwargs)  # type: ignore[arg-type]


def test_keys_are_readable() -> None:
    assert instance_key(instance(255)) == "v1/instances/ns/backend/generate/ff"
    assert card_key(instance(255)) == "v1/mdc/ns/backend/generate/ff"
    chat = Instance("dynamo", "Processor", "chat/completions", 1, {})
    assert instance_key(chat) == "v1/instances/dynamo/Processor/chat%2Fcompletions/1"


class Registries(RuleBasedStateMachine):
    """The registry against two dicts."""

    leases: Bundle[int] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.registry = MemoryRegistry(random.Random(0))
        self.values: dict[str, tuple[bytes, int]] = {}
        self.live: set[int] = set()
        self.seen: dict[str, bytes] = {}
        self.registry.watch("a/", self.watch)

    def watch(self, key: str, value: bytes | None) -> None:
        assert key.startswith("a/")
        if value is None:
            del self.seen[key]
        else:
            assert self.seen.get(key) != value, "only changes are told"
            self.seen[key] = value

    @rule(target=leases, wanted=st.integers(0, 3))
    def grant(self, wanted: int) -> int:
        lease = self.registry.grant(wanted)
        assert lease > 0
        assert lease not in self.live
        assert lease == wanted or wanted == 0 or wanted in self.live
        self.live.add(lease)
        return lease

    @rule(lease=leases, key=st.sampled_from(["a/1", "a/2", "b/1"]), value=st.binary(max_size=1))
    def put(self, lease: int, key: str, value: bytes) -> None:
        if lease not in self.live:
            with pytest.raises(KeyError):
                self.registry.put(key, value, lease)
            return
        self.registry.put(key, value, lease)
        self.values[key] = (value, lease)

    @rule(lease=leases, key=st.sampled_from(["a/1", "a/2", "b/1"]))
    def delete(self, lease: int, key: str) -> None:
        self.registry.delete(key, lease)
        if self.values.get(key, (b"", -1))[1] == lease:
            del self.values[key]

    @rule(lease=leases)
    def revoke(self, lease: int) -> None:
        self.registry.revoke(lease)
        self.live.discard(lease)
        self.values = {key: held for key, held in self.values.items() if held[1] != lease}

    @invariant()
    def agrees(self) -> None:
        assert self.registry.items() == sorted((key, value) for key, (value, _) in self.values.items())
        assert self.seen == {key: value for key, (value, _) in self.values.items() if key.startswith("a/")}
        assert self.registry.statistics().leases == len(self.live)


TestRegistries = Registries.TestCase


class House:
    """A daemon's link server and processes linked to it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "link"
        self.system = System(seed=1)
        self.servers = 0

    async def __aenter__(self) -> "House":  # noqa: PYI034
        await self.system.__aenter__()
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.system.__aexit__(None, None, None)

    async def serve(self) -> None:
        """Start a daemon with an empty registry, as after a crash."""
        self.registry = MemoryRegistry(random.Random(self.servers))
        self.server = LinkServer(self.path, self.registry, "here")
        self.servers += 1
        ref = self.system.start(f"server{self.servers}", lambda: self.server, restart="temporary")
        await self.system.ready(ref, timeout=5)

    async def end(self) -> None:
        await self.system.root.stop_child(f"server{self.servers}")

    async def connect(self, make: object) -> None:
        await asyncio.get_running_loop().create_unix_connection(make, str(self.path))  # type: ignore[arg-type]

    async def join(self, name: str, **kwargs: object) -> LinkRegistry:
        hello = Hello(name, 1, version=__version__, protocol=PROTOCOL)
        link = LinkRegistry(hello, self.connect, keeps=True, **kwargs)  # type: ignore[arg-type]
        ref = self.system.start(name, lambda: link, restart="temporary")
        await self.system.ready(ref, timeout=5)
        await link.leased(timeout=5)
        return link


async def until(condition: object, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_one_process_puts_others_see_until_it_ends(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        a, b = await house.join("a"), await house.join("b")
        seen: dict[str, bytes] = {}
        b.watch("k/", lambda key, value: seen.pop(key) if value is None else seen.update({key: value}))  # type: ignore[arg-type,return-value]
        a.put("k/1", b"x")
        a.put("other", b"y")
        await until(lambda: seen == {"k/1": b"x"})
        assert a.lease != b.lease
        await house.system.root.stop_child("a")
        await until(lambda: not seen)
        assert house.registry.statistics().leases == 2, "the link's own, and the process's that is there"


async def test_a_new_daemon_gets_everything_again_under_the_same_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_impl, "GRACE", 0.3)
    async with House(tmp_path) as house:
        a, b = await house.join("a"), await house.join("b")
        lease = a.lease
        told: list[tuple[str, bytes | None]] = []
        b.watch("k/", lambda key, value: told.append((key, value)))
        a.put("k/a", b"1")
        await until(lambda: told == [("k/a", b"1")])
        await house.end()
        await until(lambda: not a.connected and not b.connected)
        await asyncio.sleep(0.2)
        assert told == [("k/a", b"1")], "the last known view stays"
        await house.serve()
        await until(lambda: a.connected and b.connected)
        await until(lambda: house.registry.items() == [("k/a", b"1")])
        await asyncio.sleep(0.5)
        assert told == [("k/a", b"1")], "who came back in time was never missing"
        assert a.lease == lease


async def test_a_key_whose_owner_does_not_come_back_goes_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_impl, "GRACE", 0.3)
    async with House(tmp_path) as house:
        a, b = await house.join("a"), await house.join("b")
        told: list[tuple[str, bytes | None]] = []
        b.watch("k/", lambda key, value: told.append((key, value)))
        a.put("k/a", b"1")
        await until(lambda: len(told) == 1)
        await house.end()
        await house.system.root.stop_child("a")
        await house.serve()
        await until(lambda: told == [("k/a", b"1"), ("k/a", None)])


async def test_a_process_that_ends_before_its_greeting_is_answered_still_says_why(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        heard: list[Connection] = []
        house.server._greeted = lambda connection: heard.append(connection)
        link = LinkRegistry(Hello("a", 1, version=__version__, protocol=PROTOCOL), house.connect)
        await house.system.ready(house.system.start("a", lambda: link, restart="temporary"), timeout=5)
        assert not link.connected
        link.send(State("A", "Stopped", "no luck today"))
        await house.system.root.stop_child("a")
        await until(lambda: heard and not house.server.connections)
        assert heard[0].reported.detail == "no luck today"


async def test_the_end_does_not_wait_for_a_daemon_that_has_gone(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        link = LinkRegistry(Hello("a", 1, version="0.0.1"), house.connect)
        await house.system.ready(house.system.start("a", lambda: link, restart="temporary"), timeout=5)
        link.send(State("A", "Stopped", "no luck today"))
        await until(lambda: link._closed.is_set())  # refused
        async with asyncio.timeout(link_impl.LAST_STATE_S / 2):
            await house.system.root.stop_child("a")


async def test_the_daemon_asks_and_the_process_answers(tmp_path: Path) -> None:
    async def answer(command: str, arguments: dict[str, object]) -> object:
        if command != "good":
            raise UserError("no", "another")
        return {"command": command, **arguments}

    async with House(tmp_path) as house:
        await house.join("a", handler=answer)
        (connection,) = house.server.connections
        assert await connection.channel.ask("good", {"x": 1}, timeout=5) == {"command": "good", "x": 1}
        with pytest.raises(UserError, match="no"):
            await connection.channel.ask("bad", timeout=5)


async def test_a_process_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        said: list[object] = []
        link = LinkRegistry(Hello("old", 1, version="0.0.1"), house.connect, take=said.append)
        await house.system.ready(house.system.start("old", lambda: link, restart="temporary"), timeout=5)
        await until(lambda: said)
        (refused,) = said
        assert isinstance(refused, Refused)
        assert refused.error.endswith("old is dynamod 0.0.1 with protocol 1")
        await until(lambda: not house.server.connections)
        assert link.lease == 0


class Plain:
    """A registry that only watches."""

    def __init__(self, memory: MemoryRegistry) -> None:
        self.memory = memory

    def watch(self, prefix: str, watcher: object) -> None:
        self.memory.watch(prefix, watcher)  # type: ignore[arg-type]


def test_a_model_is_there_while_one_of_its_instances_is() -> None:
    memory = MemoryRegistry(random.Random(0))
    view = View(Plain(memory))  # type: ignore[arg-type]
    news: list[tuple[str, bool]] = []
    view.on_model(lambda name, card: news.append((name, card is not None)))
    leases = [memory.grant(), memory.grant()]
    for number, lease in enumerate(leases, 1):
        memory.put(instance_key(instance(number)), msgspec.json.encode(instance(number)), lease)
        memory.put(card_key(instance(number)), msgspec.json.encode(ModelCard("m")), lease)
    assert news == [("m", True)]
    assert [i.instance_id for i in view.serving("m")] == [1, 2]
    draining = instance(2, state="draining")
    memory.put(instance_key(draining), msgspec.json.encode(draining), leases[1])
    assert [i.instance_id for i in view.serving("m")] == [1]
    memory.revoke(leases[0])
    assert view.serving("m") == []
    assert view.card("m") == ModelCard("m")
    memory.revoke(leases[1])
    assert news == [("m", True), ("m", False)]
    assert view.models() == {}
    assert not view._instances, "of paths without an instance nothing is kept"
    memory.put("v1/instances/ns/x/y/1", b"junk", memory.grant())
    assert view.all_instances() == []
