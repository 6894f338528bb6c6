"""Values of the registry that are not ours, newer, or absurd: skipped, counted, said once."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.discovery.keys import card_key, exited_key, instance_key, quarantine_key
from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.records import decoded, keep, statistics
from dynamod.discovery.view import UNRESPONSIVE, View
from dynamod.message.discovery import Instance, ModelCard
from dynamod.message.protocol import PROTOCOL

GOOD = msgspec.to_builtins(ModelCard("m", kv_cache_block_size=64))
ONE = Instance("n", "c", "e", 7, {})

FOREIGN = b'{"display_name":"Qwen/Qwen3-0.6B","slug":"qwen_qwen3-0_6b","model_info":{"hf_config_json":"nats://x"}}'

ABSURD: list[dict[str, Any]] = [
    {"name": ""},
    {"name": "x" * 300},
    {"name": "a\x1b[2Jb"},
    {"name": "a\nb"},
    {"name": 3},
    {"kv_cache_block_size": 0},
    {"kv_cache_block_size": -16},
    {"context_length": -1},
    {"context_length": 10**30},
    {"migration_limit": 10**6},
    {"eos_token_ids": [10**12]},
    {"types": [""]},
    {"kind": "images"},
]


@pytest.mark.parametrize("change", ABSURD, ids=str)
def test_a_card_with_absurd_fields_is_no_card(change: dict[str, Any]) -> None:
    value = msgspec.json.encode({**GOOD, **change})
    assert decoded(f"v1/mdc/{change}", value, ModelCard) is None
    assert decoded("v1/mdc/good", msgspec.json.encode(GOOD), ModelCard) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, *msgspec.to_builtins(ONE)]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=200) | st.just(FOREIGN) | JSON.map(msgspec.json.encode))
def test_no_value_raises(value: bytes) -> None:
    for kind in (Instance, ModelCard):
        found = decoded("v1/some/key", value, kind)
        assert found is None or isinstance(found, kind)


def test_a_newer_card_with_more_fields_is_a_card() -> None:
    assert decoded("k", msgspec.json.encode({**GOOD, "new": {"a": 1}}), ModelCard) is not None


def test_the_same_value_is_said_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    table: dict[str, ModelCard] = {}
    watcher, before = keep(table, ModelCard), statistics().ignored
    watcher("v1/mdc/x", msgspec.json.encode(GOOD))
    for value in (FOREIGN, FOREIGN, b"{}"):
        watcher("v1/mdc/x", value)
        assert table == {}
    assert statistics().ignored == before + 3
    assert caplog.text.count("v1/mdc/x") == 2


def test_a_view_lives_through_them_and_forgets_what_stood_there() -> None:
    registry = MemoryRegistry(random.Random(0))
    view, lease = View(registry), registry.grant()  # type: ignore[arg-type]
    good = msgspec.json.encode(ONE), msgspec.json.encode(GOOD)
    for key, value in zip((instance_key(ONE), card_key(ONE)), good, strict=True):
        registry.put(key, value, lease)
    registry.put(f"{exited_key(1)}/nonsense", b"\xff", lease)
    assert [one.instance_id for one in view.serving("m")] == [7]
    for key, value in zip((instance_key(ONE), card_key(ONE)), good, strict=True):
        registry.put(key, FOREIGN, lease)
        assert view.serving("m") == []
        registry.put(key, value, lease)
        assert [one.instance_id for one in view.serving("m")] == [7]
    registry.put(instance_key(ONE), b"[]", lease)
    assert (view.all_instances(), dict(view.instances(ONE.path))) == ([], {})


def test_quarantine_means_one_process_also_where_two_nodes_have_one_name() -> None:
    registry = MemoryRegistry(random.Random(0))
    view, lease = View(registry), registry.grant()  # type: ignore[arg-type]
    for number in (1, 2):  # containers of one name, and their processes have the same pid
        one = Instance("n", "c", "e", number, {}, node="same", pid=2)
        registry.put(instance_key(one), msgspec.json.encode(one), lease)
        registry.put(card_key(one), msgspec.json.encode(GOOD), lease)
    registry.put(quarantine_key(1), b"", lease)
    assert [one.instance_id for one in view.serving("m")] == [2]


async def test_the_cause_of_an_end_is_also_one_that_becomes_known_during_the_wait() -> None:
    registry = MemoryRegistry(random.Random(0))
    view, lease = View(registry), registry.grant()  # type: ignore[arg-type]
    for key, cause in ((quarantine_key(7), UNRESPONSIVE), (exited_key(7), "exit code 3")):
        asked = asyncio.ensure_future(view.cause(ONE, 5.0))
        await asyncio.sleep(0)
        registry.put(key, b"exit code 3", lease)
        assert await asked == cause
        assert await view.cause(ONE, 0.0) == cause
        registry.delete(key, lease)
        assert await view.cause(ONE, 0.0) == ""


def test_fields_and_sections_of_a_newer_release_are_skipped_and_counted() -> None:
    before = statistics()
    newer = {**GOOD, "dreams": {"of": "sheep"}, "capabilities": {"seed": True, "telepathy": True}}
    card = decoded("v1/mdc/newer", msgspec.json.encode(newer), ModelCard)
    assert card is not None
    assert card.capabilities.seed
    instance = {**msgspec.to_builtins(ONE), "release": "9.9"}
    assert decoded("v1/instances/newer", msgspec.json.encode(instance), Instance) == ONE
    after = statistics()
    assert (after.unknown_fields - before.unknown_fields, after.ignored - before.ignored) == (3, 0)


def test_unknown_fields_of_a_value_count_once_however_often_it_is_read() -> None:
    before = statistics().unknown_fields
    for release in ("9.9", "9.9", "9.10"):
        value = msgspec.json.encode({**msgspec.to_builtins(ONE), "release": release})
        assert decoded("v1/instances/read-again", value, Instance) == ONE
    assert statistics().unknown_fields == before + 2


def test_an_instance_in_a_state_that_a_newer_release_has_is_not_asked() -> None:
    before = statistics().ignored
    value = msgspec.json.encode({**msgspec.to_builtins(ONE), "state": "dreaming"})
    assert decoded("v1/instances/dreaming", value, Instance) is None
    assert statistics().ignored == before + 1


@pytest.mark.parametrize(
    ("protocol", "since", "taken"), [(1, 1, True), (99, PROTOCOL, True), (99, PROTOCOL + 1, False)]
)
def test_an_instance_and_a_card_say_which_protocols_their_node_works_with(
    protocol: int, since: int, taken: bool
) -> None:
    for kind, value in (("instances", ONE), ("mdc", ModelCard("m"))):
        said = {**msgspec.to_builtins(value), "protocol": protocol, "since": since}
        record = decoded(f"v1/{kind}/{protocol}/{since}", msgspec.json.encode(said), type(value))
        assert (record is not None) == taken
