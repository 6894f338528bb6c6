"""Prompts at prefill workers, as the ingress sees them: asked for, lost, read, left. Virtual time."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.features.prefill.dispatch import PrefillCounts
from dynamod.features.prefill.remote import TRIES, RemotePrefill, RemotePrompt
from dynamod.features.prefill.stage import PrefillWorkerLost
from dynamod.message.discovery import Capabilities, Instance, ModelCard
from dynamod.message.errors import EngineFailed
from dynamod.message.ingress import Accepted, Failed, Items
from dynamod.message.worker import TRIAL_PAUSE, TRIAL_TAKEN, Generate, Handoff, TransferShape
from dynamod.migration.base import Choice, Limits
from dynamod.router.placement import Placement
from dynamod.router.router import Prompt

NEEDS = ModelCard("m", capabilities=Capabilities(handoff=True, needs_prefill=True))
OTHER = ModelCard("m", capabilities=Capabilities(handoff=True))
REQUEST = Generate("r", "m", b"")


def choice_of(card: ModelCard) -> Choice:
    nothing: Any = None
    return Choice(REQUEST, nothing, nothing, 0, exact=True, limit=0, card=card, prompt=Prompt("r", 9))


class Prefills:
    """Prefill workers, and all that stands between them and a `RemotePrefill`."""

    def __init__(
        self, *, dead: int = 0, shape: TransferShape = "rendezvous", params: Any = None, enforced: bool = False
    ) -> None:
        self.dead, self.shape = dead, shape
        self.params = {"room": 1} if params is None else params
        self.sinks: list[Any] = []
        self.cancelled = self.held = self.confirmed = 0
        self.quarantine: set[int] = set()
        self.tried: set[int] = set()
        self.workers = 1
        self.taken = 0  # so many times the worker tries another request alone
        self.silent = False
        self.requests: list[Any] = []
        self.asked: list[set[int]] = []
        self.counts: dict[str, PrefillCounts] = defaultdict(PrefillCounts)
        self.remote = RemotePrefill(self, self, self, Limits(), self.counts.__getitem__, enforced=enforced)  # type: ignore[arg-type]

    def served(self, *_: Any) -> Any:
        return SimpleNamespace(instances=(1,))

    def quarantined(self, instance: Instance) -> bool:
        return instance.instance_id in self.quarantine

    def on_change(self, _changed: Any) -> None: ...

    async def acquire(self, _card: Any, _prompt: Any, tried: set[int], *, alone: bool, **_how: Any) -> Placement:
        self.asked.append(set(tried))
        self.placed = self.place(max(tried, default=0) + 1, alone=alone)
        return self.placed

    def available(self, _card: Any, _prompt: Any, tried: set[int], **_how: Any) -> bool:
        return len(tried) < self.workers

    def place(self, number: int = 0, *, alone: bool = False) -> Any:
        self.held += 1
        return Place(Instance("n", "c", "e", number, {}), SimpleNamespace(tokens=9), self, self.released, alone)  # type: ignore[arg-type]

    def released(self) -> None:
        self.held -= 1

    def finished(self, _: Any) -> None: ...

    def prefill_completed(self, _: Any) -> None:
        self.held += 1  # `released` is called for it, too

    def open(self, instance: Instance, request: Any, sink: Any) -> Any:
        self.sinks.append(sink)
        self.requests.append(request)
        if self.taken:
            self.taken -= 1
            sink.delta(Failed(1, "Overloaded", "the worker tries another request alone", retry=True, code=TRIAL_TAKEN))
        elif self.silent:
            pass
        elif instance.instance_id <= self.dead:
            sink.lost("connection refused")
        else:
            data = msgspec.msgpack.encode(Handoff("s", "l", params=self.params, shape=self.shape))
            sink.delta(Items(1, 0, (data,)))
        return SimpleNamespace(cancel=self._cancel, confirm=self._confirm)

    def _cancel(self) -> None:
        self.cancelled += 1

    def _confirm(self) -> None:
        self.confirmed += 1

    async def begun(self, card: ModelCard = NEEDS, *, alone: bool = False) -> tuple[RemotePrompt, Any]:
        place = self.place(alone=alone)
        prompt = await self.remote.open(choice_of(card), self.tried, REQUEST, place)
        assert prompt is not None
        return prompt, place


class Place(Placement):
    """Its release is counted once."""

    def release(self) -> None:
        if not hasattr(self, "gone"):
            self.gone = True
            super().release()


@virtual
async def test_others_are_asked_where_nobody_else_can_compute_it() -> None:
    """By the request, which has found out first whether its prompt has crashed the one before."""
    prefills = Prefills(dead=1)
    with pytest.raises(PrefillWorkerLost, match="connection refused"):
        await prefills.begun()
    prompt, place = await prefills.begun()
    assert (prefills.asked, prefills.tried) == ([set(), {1}], set())
    assert (prefills.counts["m"].failed, prefills.counts["m"].remote) == (1, 1)
    prompt.close()
    place.release()
    assert prefills.cancelled == 1

    prefills = Prefills(dead=9)
    for _ in range(TRIES - 1):
        with pytest.raises(PrefillWorkerLost):
            await prefills.begun()
    with pytest.raises(EngineFailed, match="no prefill worker could compute the prompt: connection refused"):
        await prefills.begun()
    assert len(prefills.asked) == TRIES
    with pytest.raises(PrefillWorkerLost, match="connection refused"):  # the worker that answers can compute it
        await prefills.begun(OTHER)


@virtual
async def test_where_it_is_enforced_the_answering_worker_computes_no_prompt() -> None:
    prefills = Prefills(dead=9, enforced=True)
    for _ in range(TRIES - 1):
        with pytest.raises(PrefillWorkerLost):
            await prefills.begun(OTHER)
    with pytest.raises(EngineFailed, match="no prefill worker could compute the prompt"):
        await prefills.begun(OTHER)


@virtual
async def test_one_that_is_tried_alone_begins_when_it_is_confirmed() -> None:
    prefills = Prefills()
    prefills.silent = True
    task = asyncio.ensure_future(prefills.begun(alone=True))
    await asyncio.sleep(1)
    [sink] = prefills.sinks
    assert prefills.requests[0].alone
    assert (prefills.confirmed, sink.alone) == (0, False), "a crash before it begins is not its doing"
    sink.delta(Accepted(1))
    assert (prefills.confirmed, sink.alone) == (1, True)
    sink.lost("connection lost")
    with pytest.raises(PrefillWorkerLost) as lost:
        await task
    assert lost.value.alone

    prefills = Prefills()
    prompt, _ = await prefills.begun(alone=True)
    prefills.placed.shared = True
    prefills.sinks[0].delta(Accepted(1))
    assert not prompt.alone, "others were there that could not leave"
    prompt.close()


@virtual
async def test_a_worker_that_tries_another_is_asked_again() -> None:
    prefills = Prefills()
    prefills.taken = 3
    prompt, _ = await prefills.begun()
    assert prefills.asked == [set()] * 4
    assert prefills.counts["m"].failed == 0
    prompt.close()


@virtual
async def test_others_are_asked_before_a_worker_that_tries_another() -> None:
    prefills = Prefills()
    prefills.workers, prefills.taken = 2, 3
    began = asyncio.get_running_loop().time()
    prompt, _ = await prefills.begun()
    assert prefills.asked == [set(), {1}, set(), {1}]
    assert prompt.instance.instance_id == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(TRIAL_PAUSE), "one pause, where no other is left"
    prompt.close()


@pytest.mark.parametrize("begun", [False, True], ids=["before its hand-off", "behind it"])
@virtual
async def test_a_prompt_leaves_for_the_trial_of_another(begun: bool) -> None:
    prefills, said = Prefills(), list[tuple[str, bool]]()
    prefills.silent = not begun
    task = asyncio.ensure_future(prefills.begun())
    await asyncio.sleep(1)
    if begun:
        prompt, _ = await task
        assert prefills.placed.leave()
        prompt.watch(lambda *what: said.append(what))
        await asyncio.sleep(0)
        assert said == [("its prompt is lost: its prefill worker tries another request alone", True)]
    else:
        prefills.silent = False
        assert prefills.placed.leave()
        prompt, _ = await task
        assert len(prefills.asked) == 2
    assert (prefills.cancelled, prefills.counts["m"].failed) == (1, 0)
    prompt.close()


@pytest.mark.parametrize("how", ["lost", "quarantined", "failed before anybody watched"])
@virtual
async def test_who_waits_for_a_lost_prompt_is_told_once(how: str) -> None:
    prefills, said = Prefills(), list[tuple[str, bool]]()
    prompt, _ = await prefills.begun()
    if how.startswith("failed"):
        prefills.sinks[0].lost("gone")
        prompt.watch(lambda *what: said.append(what))
    else:
        prompt.watch(lambda *what: said.append(what))
        if how == "lost":
            prefills.sinks[0].lost("gone")
        else:
            prefills.remote.instances_changed()
            assert said == []
            prefills.quarantine.add(1)
            prefills.remote.instances_changed()
    await asyncio.sleep(0)
    assert prefills.counts["m"].failed == 0
    prompt.unread()
    assert prefills.counts["m"].failed == 1
    prompt.close()
    prefills.remote.instances_changed()
    [(why, displaced)] = said
    assert not displaced
    assert why.startswith("its prompt is lost: ")


@virtual
async def test_who_reads_by_itself_is_left_alone() -> None:
    prefills = Prefills(shape="pull")
    prompt, _ = await prefills.begun(OTHER)
    prefills.quarantine.add(1)
    prefills.remote.instances_changed()
    assert prefills.cancelled == 0
    prompt.close()


@pytest.mark.parametrize(
    ("shape", "params", "ended"), [("pull", {"a": 1}, 1), ("rendezvous", {"a": 1}, 0), ("pull", {}, 1)]
)
@virtual
async def test_the_first_token_ends_what_another_worker_reads(shape: TransferShape, params: Any, ended: int) -> None:
    """Nobody reads any more, whether all could be read or not. A prefill engine that sends blocks knows that itself."""
    prefills = Prefills(shape=shape, params=params)
    prompt, place = await prefills.begun()
    assert prefills.cancelled == 0
    place.prefill_completed()
    assert prefills.cancelled == ended
    prefills.sinks[0].delta(Items(1, 1, (), "stop"))
    prompt.close()
    assert prefills.cancelled == ended
