"""Places at prefill workers, and why there is none. Virtual time."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.features.prefill.decision import PrefillDecision
from dynamod.message.discovery import PREFILL, Capabilities, ModelCard
from dynamod.message.errors import Overloaded
from dynamod.message.kv_events import Load
from dynamod.observe.metrics import families
from dynamod.router.decision import Decision
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt
from tests.ingress.test_dispatcher import CARD, Desk, desk, settled


async def prefill_place(
    made: Desk, card: ModelCard, prompt: Prompt, answer: Decision, exclude: Any = (), **more: Any
) -> Any:
    """As a choice asks for it."""
    needed = card.capabilities.needs_prefill
    how = {"pool": PREFILL, "waits": needed, "again": needed, "after": answer, **more}
    return await made.client.acquire(card, prompt, exclude, **how)


@pytest.mark.parametrize("alone", [False, True])
@virtual
async def test_a_prompt_that_no_other_can_compute_waits_for_a_prefill_worker(alone: bool) -> None:
    card = msgspec.structs.replace(CARD, capabilities=Capabilities(handoff=True, needs_prefill=True))
    async with desk() as (made, group):
        with await made.acquire("r") as answer:
            acquire = partial(prefill_place, made, card, Prompt("r", 9), answer.decision, alone=alone, timeout=30)
            asked = group.create_task(acquire())
            await settled()
            await asyncio.sleep(1)
            assert (asked.done(), made.actor.waiting(("m", "prefill"))) == (False, 1)
            made.come(7, "prefill")
            await asyncio.sleep(1)
            place = asked.result()
            assert isinstance(place, Placement)
            assert (place.instance.instance_id, place.alone) == (7, alone)
            [decision] = [one for one in made.actor.decisions.of("r") if one.notes]
            found = decision.notes["prefill"]
            assert isinstance(found, PrefillDecision)
            assert found.reason == "required"
            place.release()
            with pytest.raises(Overloaded, match="within 30 s"):
                await acquire({7})
        assert made.load == 0


@virtual
async def test_one_that_others_can_compute_does_not_wait() -> None:
    async with desk() as (made, _group):
        with await made.acquire("r") as answer:
            found = await prefill_place(made, CARD, Prompt("r", 9999), answer.decision)
            assert isinstance(found, PrefillDecision)
            assert found.reason == "no_workers"


@virtual
async def test_what_prompts_take_on_their_way_counts_as_the_workers_publish_it() -> None:
    async with desk() as (made, _group):
        with await made.acquire("r") as answer:
            made.come(7, "prefill")
            await settled()
            ask = partial(prefill_place, made, CARD, Prompt("r", 4000), answer.decision)

            async def way_of(here: Load | None, there: Load | None) -> float | None:
                for pool, number, load in (("", answer.instance.instance_id, here), ("prefill", 7, there)):
                    if load is not None:
                        made.actor.routers["m", pool].state.apply(number, (load,))
                found = await ask()
                assert isinstance(found, PrefillDecision)
                return found.state.way

            size = CARD.kv_cache_block_size
            rate = Load(0, 0, 0, 9, 0.0, prefill_ms=0.5 * size)
            assert await way_of(None, None) is None
            assert await way_of(None, msgspec.structs.replace(rate, move_ms=30.0)) == 60
            assert await way_of(msgspec.structs.replace(rate, move_ms=2000.0), None) == 4000


@virtual
async def test_metrics_of_prompts() -> None:
    async with desk() as (made, _group):
        rows = list(made.actor.stages["prefill"].rows("m", "p_model", {"model": "m"}))
        found = {family.name: family for family in families(rows)}
        assert found["p_model_remote_prefill_tokens"].samples[0].value == 0
        assert "whole prompts" in found["p_model_remote_prefill_tokens"].documentation
