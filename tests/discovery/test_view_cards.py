"""What a view makes of workers that disagree about a model, and of an address that it is limited to."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.discovery.keys import Address, card_key, instance_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View, disagree
from dynamod.message.discovery import Adapter, Capabilities, Instance, ModelCard


def put(memory: MemoryRegistry, instance: Instance, card: ModelCard) -> int:
    lease = memory.grant()
    memory.put(instance_key(instance), msgspec.json.encode(instance), lease)
    memory.put(card_key(instance), msgspec.json.encode(card), lease)
    return lease


def test_workers_that_disagree_are_not_mixed_and_the_next_takes_over() -> None:
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory)
    news: list[tuple[str, str | None]] = []
    view.on_model(lambda name, card: news.append((name, card.mdc_sum if card is not None else None)))
    old, new = ModelCard("m", mdc_sum="old"), ModelCard("m", mdc_sum="new")
    assert disagree(old, new)
    assert disagree(old, ModelCard("m", kind="text", mdc_sum="old"))
    assert not disagree(old, ModelCard("m", mdc_sum="old", engine="other", kv_cache_block_size=1))
    vectors = ModelCard("m", types=("embeddings", "score"), mdc_sum="old")
    assert disagree(old, vectors)
    assert disagree(vectors, msgspec.structs.replace(vectors, capabilities=Capabilities(pairs=True)))
    assert not disagree(old, ModelCard("m", types=("chat",), mdc_sum="old"))
    assert not disagree(old, ModelCard("m", types=(), mdc_sum="old")), "it helps the others"
    leases = [put(memory, Instance("n", "c", "e", number, {}), old) for number in (1, 2)]
    put(memory, Instance("n", "c", "e", 3, {}), new)
    assert news == [("m", "old")]
    assert [one.instance_id for one in view.serving("m", old)] == [1, 2]
    assert [one.instance_id for one in view.serving("m", new)] == [3]
    for lease in leases:
        memory.revoke(lease)
    assert news == [("m", "old"), ("m", "new")]
    assert view.card("m") == new


@pytest.mark.parametrize("card_first", [False, True])
def test_a_model_is_there_while_its_instance_and_its_card_are(card_first: bool) -> None:
    """The registry says in any order what has come and gone: several watches of etcd, a lease that ends."""
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory)
    news: list[tuple[str | None, int]] = []
    view.on_model(lambda name, card: news.append((card and card.name, len(view.serving(name)))))
    lease, instance, card = memory.grant(), Instance("n", "c", "e", 1, {}), ModelCard("m")
    items = [(instance_key(instance), instance), (card_key(instance), card)]
    for key, value in reversed(items) if card_first else items:
        assert (view.models(), view.serving("m"), news) == ({}, [], [])
        memory.put(key, msgspec.json.encode(value), lease)
    assert (view.models(), view.serving("m"), news) == ({"m": card}, [instance], [("m", 1)])
    memory.put(instance_key(instance), msgspec.json.encode(instance), lease)
    memory.put(card_key(instance), msgspec.json.encode(card), lease)
    assert news == [("m", 1)]
    for key, _value in items if card_first else reversed(items):
        memory.delete(key, lease)
        assert (view.models(), view.serving("m"), news) == ({}, [], [("m", 1), (None, 0)])


def test_only_an_address() -> None:
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory, Address("n", "c", "chat/completions"))
    for number, (component, endpoint) in enumerate(
        [("c", "chat/completions"), ("c", "chat"), ("c2", "chat/completions"), ("c", "chat/completions2")], 1
    ):
        put(memory, Instance("n", component, endpoint, number, {}), ModelCard(f"m{number}"))
    assert sorted(view.models()) == ["m1"]
    assert [one.instance_id for one in view.all_instances()] == [1]


def test_who_answers_and_who_makes_vectors_are_not_mixed() -> None:
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory)
    chat, vectors = ModelCard("m", mdc_sum="x"), ModelCard("m", types=("embeddings",), mdc_sum="x")
    put(memory, Instance("n", "c", "e", 1, {}), chat)
    put(memory, Instance("n", "c", "e", 2, {}), vectors)
    put(memory, Instance("n", "c", "e", 3, {}, pool="prefill"), ModelCard("m", types=(), mdc_sum="x"))
    for _ in range(2):
        assert [one.instance_id for one in view.serving("m", chat)] == [1, 3]
        assert [one.instance_id for one in view.serving("m", vectors)] == [2, 3]


def test_an_adapter_is_a_model_where_it_is_loaded() -> None:
    memory = MemoryRegistry(random.Random(0))
    view = View(memory)  # type: ignore[arg-type]
    seen: list[tuple[str, str]] = []
    view.on_model(lambda name, card: seen.append((name, "gone" if card is None else card.salt)))
    first, second = (Instance("n", "c", "e", number, {}) for number in (1, 2))
    one, other = Adapter("x", "/x", "aa"), Adapter("x", "/y", "bb")
    base = ModelCard("m", "text", types=("chat", "embeddings"))
    put(memory, first, msgspec.structs.replace(base, adapters=(one, Adapter("y", "/y", "cc"))))
    lease = put(memory, second, base)
    card = view.card("x")
    assert card is not None
    assert (card.adapter, card.parent, card.base, card.types, card.adapters) == (one, "m", "m", ("chat",), ())
    assert [len(view.serving(name)) for name in ("m", "x", "y")] == [2, 1, 1]
    memory.put(card_key(second), msgspec.json.encode(msgspec.structs.replace(base, adapters=(other,))), lease)
    assert view.serving("x", card) == [first], "another file under that name"
    memory.put(card_key(first), msgspec.json.encode(base), lease)
    assert view.card("y") is None
    found = view.card("x")
    assert found is not None
    assert view.serving("x", found) == [second]
    assert seen == [("m", ""), ("x", "aa"), ("y", "cc"), ("x", "bb"), ("y", "gone")]


def test_what_the_workers_of_a_model_can_do() -> None:
    """Of forms what one can, of all else what all can; those that disagree, or only help, do not count."""
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory)
    card = ModelCard("m", mdc_sum="x")
    assert view.capabilities(card) is None
    kinds = [
        Capabilities(seed=True, lora=True, grammars=True, forms=("behind", "a")),
        Capabilities(seed=True, needs_prefill=True, forms=("b", "a")),
    ]
    leases = [
        put(memory, Instance("n", "c", "e", number, {}), msgspec.structs.replace(card, capabilities=kind))
        for number, kind in enumerate(kinds)
    ]
    put(memory, Instance("n", "c", "e", 8, {}), ModelCard("m", types=(), mdc_sum="x"))
    put(memory, Instance("n", "c", "e", 9, {}), ModelCard("m", mdc_sum="other"))
    both = Capabilities(seed=True, needs_prefill=True, grammars=True, forms=("a", "b", "behind"))
    assert view.capabilities(card) == both
    memory.revoke(leases[0])
    assert view.capabilities(card) == kinds[1]
    memory.revoke(leases[1])
    assert view.capabilities(card) is None


FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in Capabilities.__struct_fields__ if name != "forms"}
    | {"forms": st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple)}
)


@given(st.lists(FLAGS.map(lambda fields: Capabilities(**fields)), min_size=1, max_size=4), st.randoms())
def test_what_is_shared_does_not_depend_on_order_or_number(several: list[Capabilities], chance: Any) -> None:
    other = [*several, chance.choice(several)]
    chance.shuffle(other)
    found, again = Capabilities.shared(several), Capabilities.shared(other)
    assert msgspec.structs.replace(found, forms=()) == msgspec.structs.replace(again, forms=())
    assert {*found.forms} == {*again.forms} == {word for one in several for word in one.forms}
    for one in several:
        assert one.seed >= found.seed
        assert one.grammars <= found.grammars
