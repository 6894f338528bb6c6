"""Prompts for other workers that may crash a prefill worker: tried alone, as answers are. Virtual time."""

import asyncio
from typing import Any

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.own_transfer import OwnTransfer, Ready
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.worker import TRIAL_TAKEN, Generate, Prefill
from tests.worker.test_worker import Manual, alone, engine_of


class Prompts(OwnTransfer):
    """Prompts that the test computes."""

    shape = "rendezvous"

    def __init__(self) -> None:
        super().__init__("l")
        self.open: list[asyncio.Event] = []

    async def prefill(self, request: Generate, ready: Ready) -> None:
        ready({"room": len(self.open)})
        self.open.append(asyncio.Event())
        await self.open[-1].wait()


class Prefills(Manual):
    """Computes prompts for others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.own_transfer = Prompts()

    def card(self) -> ModelCard:
        return ModelCard("m", capabilities=Capabilities(handoff=True))


@virtual
async def test_a_prompt_for_another_worker_is_tried_alone_too(words: Any) -> None:
    """Those that are there may be computed until they have been read, although their hand-off has been said."""
    async with System() as system:
        options = EngineOptions("m", disaggregation_mode="prefill")
        house = await words.House(system, Prefills, options).start()
        prompts = engine_of(house).own_transfer
        assert isinstance(prompts, Prompts)
        before = house.ask(Prefill(words.generate([3])))
        await asyncio.sleep(1)
        assert len(prompts.open) == 1
        suspect = house.ask(Prefill(alone(words, [1])))
        await asyncio.sleep(1)
        assert not suspect.accepted
        other = house.ask(Prefill(words.generate([2])))
        assert (await other.wait()).error.code == TRIAL_TAKEN
        prompts.open[0].set()
        await before.wait()
        await asyncio.sleep(1)
        assert (suspect.accepted, len(prompts.open)) == (True, 1), "it waits for a confirmation"
        suspect.stream.confirm()
        await asyncio.sleep(0.1)
        assert len(prompts.open) == 2
        assert (await house.ask(Prefill(words.generate([2]))).wait()).error.code == TRIAL_TAKEN
        prompts.open[1].set()
        await suspect.wait()
        last = house.ask(Prefill(words.generate([2])))
        await asyncio.sleep(1)
        assert last.accepted
        prompts.open[2].set()
        await last.wait()
