"""A worker changes its role while it runs: what is open ends first, and nothing is lost. Virtual time, mocker."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.actor import ActorUnreachable, System
from dynamod.actor.testing import virtual
from dynamod.engine.base import EngineOptions
from dynamod.features.prefill.handoff import HandoffEndpoint
from dynamod.features.prefill.transfer.sessions import Session, Sessions
from dynamod.features.role_switch.worker import Switch
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.message.worker import Handoff, Prefill
from dynamod.worker.parts import PartQuestion, Role

SLOW = {"block_size": 4, "num_gpu_blocks": 64, "watermark": 0}
PROMPT = list(range(20))


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(endpoint: HandoffEndpoint, host: str, folder: Path | None, lease: float) -> None:
        await asyncio.sleep(0)
        if host == "nowhere":
            raise OSError("no such address")
        now = asyncio.get_running_loop().time
        endpoint.sessions = Sessions(now, endpoint._spawn, endpoint._engine.layout(), lease=lease)

    monkeypatch.setattr(HandoffEndpoint, "_serve", serve)


async def worker(words: Any, system: System, mode: DisaggregationMode = "aggregated", **options: Any) -> Any:
    made = EngineOptions("m", arguments=SLOW, disaggregation_mode=mode, **options)
    return await words.House(system, words.Mock, made).start()


def switched(house: Any, role: DisaggregationMode, **more: Any) -> "asyncio.Task[Role]":
    return asyncio.ensure_future(house.ref.ask(PartQuestion(Switch(role=role, **more)), timeout=10_000))


def session_of(house: Any, answer: Any) -> Session:
    handoff = msgspec.msgpack.decode(answer.deltas[-1].items[0], type=Handoff)
    return house.workers[-1].parts["prefill"].endpoint.sessions._open[handoff.session]  # type: ignore[no-any-return]


TYPES = ("chat", "completions", "embeddings", "score")


def running(house: Any) -> int:
    return int(house.statistics.engine.running + house.statistics.engine.waiting)


@virtual
async def test_an_idle_worker_computes_prompts_at_once_and_answers_again(words: Any) -> None:
    async with System() as system:
        house = await worker(words, system)
        before = await house.ask(words.generate(PROMPT, max_tokens=5)).wait()
        refused = await house.ask(Prefill(words.generate(PROMPT))).wait()
        assert refused.error.error == "BadRequest"
        assert await switched(house, "prefill") == Role("prefill", 1)
        assert [card.types for card in house.published] == [TYPES, ()]
        assert house.withdrawn == 1
        assert (house.statistics.pool, house.statistics.role_switches) == ("prefill", 1)
        asked = house.ask(Prefill(words.generate(PROMPT)))
        await asyncio.sleep(5)
        session = session_of(house, asked)
        assert (session.count, session.finished) == (4, True)
        session.end("read")
        assert asked.finish == "stop"
        late = await house.ask(words.generate(PROMPT, max_tokens=5)).wait()
        assert late.ids == before.ids, "an ingress that has not heard of it yet"
        assert await switched(house, "decode") == Role("decode", 2)
        assert [card.types for card in house.published][2:] == [TYPES]
        assert (await house.ask(words.generate(PROMPT, max_tokens=5)).wait()).ids == before.ids
        assert (await house.ask(Prefill(words.generate(PROMPT))).wait()).error.error == "BadRequest"
        stored = house.ask(Prefill(words.generate(PROMPT), stored=True))
        await asyncio.sleep(1)
        assert session_of(house, stored).count == 4, "they are in its cache, as before"


@virtual
async def test_what_is_open_finishes_before(words: Any) -> None:
    async with System() as system:
        house = await worker(words, system)
        whole = (await house.ask(words.generate(PROMPT, max_tokens=40)).wait()).ids
        open_one = house.ask(words.generate(PROMPT, max_tokens=40))
        await asyncio.sleep(0.1)
        change = switched(house, "prefill")
        await asyncio.sleep(0.1)
        assert (house.withdrawn, len(house.published), change.done()) == (1, 1, False)
        late = house.ask(words.generate(PROMPT, max_tokens=40))
        await open_one.wait()
        await asyncio.sleep(0)
        assert not change.done(), "one has come late"
        await late.wait()
        assert (await change).role == "prefill"
        assert [open_one.ids, late.ids] == [whole, whole]


@virtual
async def test_what_does_not_finish_is_sent_elsewhere_and_frees_the_engine(words: Any) -> None:
    async with System() as system:
        house = await worker(words, system)
        endless = house.ask(words.generate(PROMPT, max_tokens=200))
        await asyncio.sleep(0.1)
        assert (await switched(house, "prefill", timeout=0.5)).role == "prefill"
        assert (endless.error.retry, endless.error.message) == (True, "the worker becomes prefill")
        assert (running(house), house.statistics.open) == (0, 0)
        asked = house.ask(Prefill(words.generate(PROMPT)))
        await asyncio.sleep(5)
        assert house.statistics.handoff.sessions.open == 1, "nobody reads it"
        assert (await switched(house, "aggregated", timeout=0.5)).epoch == 2
        assert asked.error.retry
        found = house.statistics.handoff.sessions
        assert (found.open, found.held_bytes, running(house)) == (0, 0, 0)


@virtual
async def test_one_change_at_a_time(words: Any) -> None:
    async with System() as system:
        house = await worker(words, system)
        house.ask(words.generate(PROMPT, max_tokens=100))
        await asyncio.sleep(0.1)
        first, second = switched(house, "prefill"), switched(house, "prefill")
        await asyncio.sleep(0.1)
        with pytest.raises(UserError, match="about to become prefill"):
            await switched(house, "decode")
        second.cancel()
        assert await first == Role("prefill", 1), "who leaves takes nothing with it"
        assert await switched(house, "prefill") == Role("prefill", 1)
        with pytest.raises(UserError, match="its epoch is 1, not 0"):
            await switched(house, "decode", expected_epoch=0)
        assert await switched(house, "decode", expected_epoch=1) == Role("decode", 2)
        assert await switched(house, "aggregated") == Role("aggregated", 3)
        assert house.withdrawn == 2, "the same pool"


@virtual
async def test_an_engine_that_keeps_its_role_says_so(words: Any) -> None:
    async with System() as system:
        arguments = {**SLOW, "kv_transfer": "pull"}
        house = await words.House(system, words.Mock, EngineOptions("m", arguments=arguments)).start()
        with pytest.raises(UserError, match="engine mocker, as it has been started, keeps its role"):
            await switched(house, "prefill")
        assert house.withdrawn == 0


@pytest.mark.parametrize("how", ["drain", "stop"])
@virtual
async def test_a_worker_that_ends_meanwhile_does_not_come_back(words: Any, how: str) -> None:
    async with System() as system:
        house = await worker(words, system)
        open_one = house.ask(words.generate(PROMPT, max_tokens=40))
        await asyncio.sleep(0.1)
        change = switched(house, "prefill")
        await asyncio.sleep(0.1)
        await system.root.stop_child("worker", drain=how == "drain", timeout=100)
        with pytest.raises(ActorUnreachable):
            await change
        assert len(house.published) == 1
        assert (open_one.error is None) is (how == "drain")


@virtual
async def test_a_worker_that_nobody_could_read_from_keeps_its_role(words: Any) -> None:
    async with System() as system:
        house = await worker(words, system, transfer_host="nowhere")
        with pytest.raises(UserError, match="cannot become prefill: no such address"):
            await switched(house, "prefill")
        assert [card.types for card in house.published] == [TYPES] * 2
        assert house.statistics.pool == ""
        assert (await house.ask(words.generate(PROMPT, max_tokens=5)).wait()).finish == "length"


def test_what_is_asked_is_checked() -> None:
    assert Switch.of({"role": "decode", "timeout": 3, "expected_epoch": None}) == Switch(role="decode", timeout=3)
    for wrong in ({"role": "both"}, {}, {"role": "decode", "timeout": 0}, {"role": "decode", "speed": 1}):
        with pytest.raises(UserError, match="no other role: "):
            Switch.of(wrong)
