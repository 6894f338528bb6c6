"""A flag of a card and the methods behind it cannot disagree: the flags follow from what an engine implements."""

import importlib
from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.engine.base import Engine
from dynamod.engine.capabilities import (
    CompilesGrammars,
    HandsOffBlocks,
    LoadsAdapters,
    MovesBlocks,
    ReportsBlocks,
    ReportsSteps,
    implemented,
)
from dynamod.engine.mocker.own_transfer import MockerTransfer
from dynamod.engine.names import ENGINES
from dynamod.message.discovery import Capabilities
from dynamod.message.worker import REPLAY

PROTOCOLS = (CompilesGrammars, HandsOffBlocks, LoadsAdapters, MovesBlocks, ReportsBlocks, ReportsSteps)
READ = ("lora", "handoff", "needs_prefill", "stored_blocks", "role_switch")
"""Flags that no class declares: they are read from the engine's objects once it has been started."""


def classes() -> dict[str, type[Engine[Any]]]:
    """Of all registered engines that can be imported here, those for vectors too."""
    found = {}
    for name, entry in ENGINES.items():
        for target in filter(None, (entry.target, entry.vectors.target if entry.vectors else "")):
            module, _, attribute = target.partition(":")
            found[f"{name} {attribute}"] = getattr(importlib.import_module(module), attribute)
    return found


CLASSES = classes()


def methods(protocol: type) -> set[str]:
    return {name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")}


def implements(engine: type, protocol: type) -> bool:
    """As far as the class tells: it has all methods of the protocol."""
    return all(hasattr(engine, name) for name in methods(protocol))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_declares_no_flag_without_its_protocol(name: str) -> None:
    engine = CLASSES[name]
    declared = engine.capabilities
    assert [flag for flag in READ if getattr(declared, flag)] == []
    assert implements(engine, ReportsBlocks) or not declared.kv_events
    assert implements(engine, CompilesGrammars) or REPLAY not in declared.forms


@pytest.mark.parametrize("name", ENGINES)
def test_the_registry_and_the_classes_agree(name: str) -> None:
    entry = ENGINES[name]
    engine = next(one for key, one in CLASSES.items() if key.startswith(f"{name} "))
    assert hasattr(engine, "adapters") is bool(entry.lora)
    moves = hasattr(engine, "own_transfer")
    assert (implements(engine, HandsOffBlocks) or moves) is (entry.handoff is not None)
    assert moves or entry.handoff is None or not entry.handoff.only_decode


def test_no_engine_has_a_method_that_raises_not_implemented() -> None:
    assert [name for protocol in PROTOCOLS for name in methods(protocol) if hasattr(Engine, name)] == []


def test_flags_without_an_implementation_are_dropped() -> None:
    every = Capabilities(**dict.fromkeys((*READ, "kv_events", "seed"), True))
    assert implemented(object(), every) == Capabilities(seed=True)


@virtual
@pytest.mark.parametrize("kv_transfer", ["worker", "pull", "rendezvous"])
@pytest.mark.parametrize("caching", [True, False])
async def test_the_card_of_a_started_engine_says_what_it_implements(
    words: Any, kv_transfer: str, caching: bool
) -> None:
    async with System() as system:
        house = await words.mocker(system, kv_transfer=kv_transfer, enable_prefix_caching=caching)
        engine = house.workers[-1]._engine
        can = engine.card().capabilities
        assert isinstance(engine, HandsOffBlocks)
        assert isinstance(engine, MovesBlocks)
        moves = isinstance(engine.own_transfer, MockerTransfer)
        assert moves is (kv_transfer == "pull"), "a rendezvous takes part in no aggregated worker"
        assert (can.handoff, can.stored_blocks) == (moves or bool(engine.exports), "stored" in engine.exports)
        assert (can.kv_events, can.lora, can.needs_prefill) == (caching, False, False)
        assert implemented(engine, msgspec.structs.replace(engine.capabilities, kv_events=caching)) == can
