"""Who serves a model is kept up to date while things change, and is what a look at everything would find."""

import random
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from dynamod.discovery import keys
from dynamod.discovery.keys import card_key, exited_key, instance_key, quarantine_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import GROUPS, View, disagree
from dynamod.message.discovery import Instance, ModelCard

CARDS = [ModelCard("m", mdc_sum="a"), ModelCard("m", mdc_sum="b"), ModelCard("other")]


def instance(number: int, state: Any = "ready") -> Instance:
    return Instance("n", "c", "e", number, {}, state, node="x", pid=number % 2)


def looked_up(view: View, name: str, like: ModelCard | None) -> set[int]:
    """A look at all that the view knows."""
    found = set()
    for one in view.all_instances():
        card = view._cards.get(card_key(one).removeprefix(keys.CARDS))
        good = card is not None and card.name == name and (like is None or not disagree(card, like))
        if good and one.state == "ready" and not view.quarantined(one) and one.instance_id not in view._exits:
            found.add(one.instance_id)
    return found


steps = st.tuples(
    st.sampled_from(["instance", "draining", "gone", "junk", "card", "no card", "quarantine", "back", "exit", "again"]),
    st.integers(1, 4),
    st.integers(0, 2),
)


@given(st.lists(steps, max_size=40))
def test_what_is_kept_is_what_a_look_at_everything_finds(found: list[tuple[str, int, int]]) -> None:
    memory: Any = MemoryRegistry(random.Random(0))
    view, lease = View(memory), memory.grant()
    for what, number, which in found:
        here, card = instance_key(instance(number)), card_key(instance(number))
        match what:
            case "instance":
                memory.put(here, msgspec.json.encode(instance(number)), lease)
            case "draining":
                memory.put(here, msgspec.json.encode(instance(number, "draining")), lease)
            case "junk":
                memory.put(here, b"junk", lease)
            case "gone":
                memory.delete(here, lease)
            case "card":
                memory.put(card, msgspec.json.encode(CARDS[which]), lease)
            case "no card":
                memory.delete(card, lease)
            case "quarantine":
                memory.put(quarantine_key(number % 2 + 1), b"", lease)
            case "back":
                memory.delete(quarantine_key(number % 2 + 1), lease)
            case "exit":
                memory.put(exited_key(number), b"", lease)
            case _:
                memory.delete(exited_key(number), lease)
        for name, like in (("m", None), ("m", CARDS[0]), ("m", CARDS[1]), ("other", None)):
            group = view.served(name, like)
            ids = [one.instance_id for one in group.instances]
            assert set(ids) == looked_up(view, name, like)
            assert len(ids) == len(set(ids))
            assert [group.get(one) for one in ids] == list(group.instances)
            assert group.get(99) is None
            assert view.serving(name, like) == list(group.instances)
            alike = None if like is None else msgspec.structs.replace(like)
            assert view.served(name, alike) is group


def test_what_has_not_changed_is_the_same_tuple() -> None:
    memory: Any = MemoryRegistry(random.Random(0))
    view = View(memory)
    for number in (1, 2):
        lease = memory.grant()
        memory.put(instance_key(instance(number)), msgspec.json.encode(instance(number)), lease)
        memory.put(card_key(instance(number)), msgspec.json.encode(CARDS[0]), lease)
    before = view.served("m", CARDS[0]).instances
    memory.put(card_key(instance(9)), msgspec.json.encode(CARDS[2]), lease)
    assert view.served("m", CARDS[0]).instances is before
    memory.delete(instance_key(instance(2)), lease)
    assert [one.instance_id for one in view.served("m", CARDS[0]).instances] == [1]
    assert view.served("m").instances is not before


def test_groups_that_nobody_asks_for_are_forgotten() -> None:
    view = View(MemoryRegistry(random.Random(0)))  # type: ignore[arg-type]
    for number in range(GROUPS * 3):
        view.served(f"m{number}", ModelCard(f"m{number}"))
        assert len(view._served.by_look) <= GROUPS
        assert len(view._served.by_card) <= GROUPS
    card = ModelCard("m")
    group = view.served("m", card)
    for _ in range(GROUPS):
        view.served("m", ModelCard("m"))  # cards that are alike, each a new one
    assert view.served("m", card) is group
