"""A worker with llama.cpp and adapters of seeded noise."""

from pathlib import Path
from typing import Any

import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.extension.installed import block_stores
from dynamod.message import tokens
from dynamod.message.discovery import Adapter
from dynamod.message.worker import Generate, Sampling, Stops
from tests.adapters import write_adapter

PATH = sample.path("sample.gguf")
PROMPT = [894, 672, 630, 783] * 20
"""With this and SEEDS the best token is clearly the best: sums in another order do not change the text."""
SEEDS = {"one": 9, "two": 18, "three": 3}
COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("adapters")
    for name, seed in SEEDS.items():
        write_adapter(made / f"{name}.gguf", seed)
    return made


class Served:
    """A worker with the engine, and its adapters."""

    def __init__(self, house: Any) -> None:
        self.house = house
        self.engine: LlamaCpp = house.workers[-1]._engine

    def asked(self, name: str = "", prompt: list[int] | None = None, **more: Any) -> Generate:
        adapter = next((one for one in self.engine.card().adapters if one.name == name), None)
        assert (adapter is None) == (name == "")
        ids, stops = tokens.pack(PROMPT if prompt is None else prompt), Stops(max_tokens=COUNT)
        return Generate("r", "m", ids, stops, Sampling(temperature=0.0), adapter=adapter, **more)

    async def text(self, name: str = "", prompt: list[int] | None = None, **more: Any) -> list[int]:
        answer = await self.house.ask(self.asked(name, prompt, **more)).wait(30)
        assert answer.finish == "length", answer
        return list(answer.ids)


async def serve(words: Any, system: System, folder: Path, *names: str, scale: float = 1.0, **arguments: Any) -> Served:
    adapters = tuple(Adapter(name, str(folder / f"{name}.gguf"), scale=scale) for name in names)
    options = EngineOptions("m", PATH, lora=adapters, arguments=arguments, stores=block_stores)
    return Served(await words.House(system, LlamaCpp, options).start("worker"))
