"""A feature adds a role of workers, and a part that has it: a toy whose workers answer with two tokens."""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.cli.flags import parse
from dynamod.cli.preflight import check
from dynamod.cli.run import build
from dynamod.engine.base import EngineOptions
from dynamod.extension import installed
from dynamod.extension.feature import Feature
from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, DisaggregationMode, ModelCard
from dynamod.message.errors import UserError
from dynamod.message.worker import Generate, Prefill
from dynamod.transport.base import Reply
from dynamod.worker import parts
from dynamod.worker.parts import PartQuestion, Question, Role, Submit, WorkerPart


class Become(Question, frozen=True, kw_only=True):
    name: ClassVar = "become"

    role: DisaggregationMode


class Short(WorkerPart):
    capabilities = ("role_switch",)

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.said: list[str] = []

    async def enter(self, role: Any) -> None:
        self.said.append(f"enter {role}")

    def leave(self, role: Any) -> None:
        self.said.append(f"leave {role}")

    def take(self, request: Prefill, reply: Reply) -> None:
        self.context.take(request, reply, lambda one, to: self.context.begin(one.request, to, self._count))

    work: ClassVar = {Prefill: take}

    def become(self, question: Become) -> Any:
        if question.role == self.context.role().role:
            return UserError(f"it is {question.role}")
        return self.context.spawn(self._become(question.role), "become")

    questions: ClassVar = {Become: become}

    async def _become(self, role: DisaggregationMode) -> Any:
        try:
            return await self.context.become(role, 10.0)
        except UserError as error:
            return error

    def _count(self, request: Generate, reply: Reply) -> None:
        reply.items((tokens.count(request.token_ids),), "stop")

    def submitting(self, request: Any, submit: Submit) -> Submit:
        stops = msgspec.structs.replace(request.stops, max_tokens=2)
        return lambda one, reply: submit(msgspec.structs.replace(one, stops=stops), reply)

    def drain(self) -> None:
        self.said.append("drain")

    def close(self) -> None:
        self.said.append("close")


def refuse(workers: Any) -> None:
    if len(workers) > 1:
        raise UserError(f"{workers[1].spec.name} is one too many")


TOY = Feature("toy", "", worker=lambda: Short, roles=("decode",), checks=refuse)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (installed, parts):
        monkeypatch.setattr(module, "installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)


@virtual
async def test_a_part_has_roles_takes_requests_and_changes_them(words: Any) -> None:
    class Able(words.Mock):  # type: ignore[misc, name-defined]
        def card(self) -> ModelCard:
            can = Capabilities(role_switch=True, stored_blocks=True, seed=True)
            return msgspec.structs.replace(super().card(), capabilities=can)

    async with System() as system:
        options = EngineOptions("m", arguments={"block_size": 4, "num_gpu_blocks": 64, "watermark": 0})
        house = await words.House(system, Able, options).start("toy")
        part = house.workers[-1].parts["toy"]
        assert house.published[0].capabilities == Capabilities(role_switch=True, seed=True), "no part has the others"
        counted = await house.ask(Prefill(words.generate([7, 8, 9]))).wait()
        assert [one.items for one in counted.deltas if getattr(one, "items", ())] == [(3,)]
        assert len((await house.ask(words.generate([1, 2, 3], max_tokens=4)).wait()).ids) == 2
        assert await house.ref.ask(PartQuestion(Become(role="decode")), timeout=60) == Role("decode", 1)
        with pytest.raises(UserError, match="there is no role 'prefill' for workers"):
            await house.ref.ask(PartQuestion(Become(role="prefill")), timeout=60)
        with pytest.raises(UserError, match="it is decode"):
            await house.ref.ask(PartQuestion(Become(role="decode")), timeout=60)
        assert (house.workers[-1].role, house.statistics.role_switches) == ("decode", 1)
        await asyncio.sleep(1)
        await system.root.stop_child("toy", drain=True, timeout=60)
        assert part.said == ["enter aggregated", "enter decode", "leave aggregated", "drain", "close"]


@virtual
async def test_a_worker_in_a_helper_role_answers_no_clients(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    helping = replace(TOY, helpers={"decode": "min_tokens"})
    monkeypatch.setattr(installed, "installed", lambda: {"toy": helping})
    assert [installed.pool_of(role) for role in ("aggregated", "decode", "prefill")] == ["", "decode", ""]
    assert installed.helpers_of(Capabilities(min_tokens=True, needs_prefill=True)) == ["decode"]
    async with System() as system:
        house = await words.mocker(system)
        open_one = house.ask(words.generate([1, 2, 3], max_tokens=60))
        await asyncio.sleep(0)
        await house.ref.ask(PartQuestion(Become(role="decode")), timeout=60)
        assert (house.published[0].types != (), house.published[1].types) == (True, ())
        assert (house.withdrawn, open_one.finish) == (1, "length"), "what was open has ended before"


def test_a_graph_is_checked_for_roles_and_by_the_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(parse(["in=http", "out=mocker", "sample"]))
    worker = whole.services["Worker"]
    config = {**worker.config, "disaggregation_mode": "decode"}
    one = replace(whole, services={"Worker": replace(worker, config=config)})
    check(one, {})
    with pytest.raises(UserError, match="Second is one too many"):
        check(replace(one, services={**one.services, "Second": replace(worker, name="Second")}), {})
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    with pytest.raises(UserError, match="Worker: the role 'decode' belongs to the feature 'toy', which is off"):
        check(one, {})
    monkeypatch.delenv("DYNAMOD_FEATURES")
    other = replace(worker, config={**config, "disaggregation_mode": "prefill"})
    with pytest.raises(UserError, match="Worker: there is no role 'prefill' for workers"):
        check(replace(one, services={"Worker": other}), {})
