"""The keeper and the backend with workers that are made up, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dynamod.actor import ActorUnreachable, Ref, System
from dynamod.actor.testing import virtual
from dynamod.features.on_demand.keeper import LISTED, Claim, Load, ModelKeeper, Release, Unload
from dynamod.features.on_demand.settings import Budget, ModelSettings
from dynamod.message.errors import DynamodError, Overloaded, UserError
from dynamod.message.pools import Pool, Replica


@dataclass
class Workers:
    """Workers that start in `start` seconds. `broken`: why they never do. `away`: the daemon does not answer.

    `first`: whether no other keeper decides.
    """

    start: float = 3.0
    broken: str = ""
    away: bool = False
    refused: str = ""
    first: bool = True
    ghosts: set[str] = field(default_factory=set[str])
    begun: dict[str, float] = field(default_factory=dict[str, float])
    scaled: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def scale(self, component: str, replicas: int) -> None:
        await self._answer()
        if self.refused:
            raise UserError(self.refused, "free some")
        self.scaled.append((component, replicas))
        if replicas:
            assert component not in self.begun, "a second load"
            self.begun[component] = asyncio.get_running_loop().time()
        else:
            await asyncio.sleep(0.2)
            self.begun.pop(component, None)

    async def pool(self, component: str) -> Pool:
        await self._answer()
        if component not in self.begun:
            return Pool(replicas=())
        state = "Ready" if self.serves(component) else "Fatal" if self.broken else "Starting"
        return Pool(replicas=(Replica(replica=0, state=state, last_error=self.broken),))

    async def _answer(self) -> None:
        await asyncio.sleep(0.01)
        if self.away:
            raise DynamodError("the process has ended")

    def serves(self, component: str) -> bool:
        begun = self.begun.get(component)
        if component in self.ghosts:
            return True
        return begun is not None and not self.broken and asyncio.get_running_loop().time() - begun >= self.start


@asynccontextmanager
async def keeper(
    workers: Workers, budget: Budget = Budget(models=1), **models: Any
) -> AsyncIterator[tuple[Ref, ModelKeeper]]:
    settings = {name: ModelSettings(component=name, **keys) for name, keys in (models or {"a": {}, "b": {}}).items()}
    async with System() as system:
        made = ModelKeeper(settings, budget, workers, workers.serves, first=lambda: workers.first)
        ref = system.start("models", lambda: made)
        await system.ready(ref, timeout=5.0)
        yield ref, made


def states(made: ModelKeeper) -> dict[str, str]:
    return {one.model: one.state for one in made.published.all()}


@virtual
async def test_a_request_waits_for_its_model_and_another_for_the_place() -> None:
    workers = Workers()
    async with keeper(workers) as (ref, made):
        first, second = Claim("a", "1"), Claim("b", "2")
        await ref.ask(first, timeout=60)
        other = asyncio.ensure_future(ref.ask(second, timeout=60))
        await asyncio.sleep(30.0)
        assert states(made) == {"a": "ready", "b": "unloaded"}
        ref.send_nowait(Release(first))
        await other
        assert states(made) == {"a": "unloaded", "b": "ready"}
        assert workers.scaled == [("a", 1), ("a", 0), ("b", 1)]
        ref.send_nowait(Release(second))


@virtual
async def test_an_idle_model_is_unloaded_after_its_ttl() -> None:
    workers = Workers()
    async with keeper(workers, a={"ttl": 60}) as (ref, made):
        claim = Claim("a", "1")
        await ref.ask(claim, timeout=60)
        await asyncio.sleep(100)
        assert states(made) == {"a": "ready"}, "a request runs"
        ref.send_nowait(Release(claim))
        await asyncio.sleep(59)
        assert states(made) == {"a": "ready"}
        await asyncio.sleep(3)
        assert states(made) == {"a": "unloaded"}
        assert workers.scaled == [("a", 1), ("a", 0)]


@virtual
async def test_a_load_that_is_given_up_is_the_error_of_who_waits() -> None:
    workers = Workers(broken="no such file")
    async with keeper(workers) as (ref, made):
        for _ in range(2):
            with pytest.raises(Overloaded, match="no such file") as caught:
                await ref.ask(Claim("a", "1"), timeout=60)
            assert caught.value.retry_after is not None
            assert 1 <= caught.value.retry_after <= 6
        with pytest.raises(Overloaded, match="no such file"):
            await ref.ask(Load("a"), timeout=60)
        await asyncio.sleep(1.0)
        assert states(made)["a"] == "unloaded"
        assert made.published.all()[0].error == "no such file"
        workers.broken = ""
        await ref.ask(Load("a"), timeout=60)
        assert made.published.all()[0].error == ""


@virtual
async def test_a_daemon_that_refuses_or_is_away() -> None:
    workers = Workers(refused="0 of 1 devices are free")
    async with keeper(workers) as (ref, made):
        with pytest.raises(Overloaded, match=r"0 of 1 devices are free; free some"):
            await ref.ask(Claim("a", "1"), timeout=60)
        workers.refused = ""
        await asyncio.sleep(10.0)
        claim = Claim("a", "2")
        await ref.ask(claim, timeout=60)
        ref.send_nowait(Release(claim))
        workers.away = True
        assert await ref.ask(Unload("a"), timeout=1)
        await asyncio.sleep(5.0)
        assert states(made)["a"] == "draining"
        workers.away = False
        await asyncio.sleep(5.0)
        assert states(made)["a"] == "unloaded"


@virtual
async def test_who_leaves_while_waiting_leaves_nothing() -> None:
    workers = Workers()
    async with keeper(workers, a={"ttl": 1}) as (ref, made):
        claim = Claim("a", "1")
        with pytest.raises(TimeoutError):
            await ref.ask(claim, timeout=1.0)
        claim.left = True
        ref.send_nowait(Release(claim))
        await asyncio.sleep(10.0)
        assert (made.published.all()[0].waiting, made.published.all()[0].running) == (0, 0)
        assert states(made) == {"a": "unloaded"}


@virtual
async def test_a_worker_that_somebody_else_ends_or_has_started() -> None:
    workers = Workers()
    workers.begun["b"] = 0.0
    async with keeper(workers, Budget()) as (ref, made):
        await asyncio.sleep(1.0)
        assert states(made) == {"a": "unloaded", "b": "ready"}
        claim = Claim("b", "1")
        await ref.ask(claim, timeout=60)
        ref.send_nowait(Release(claim))
        del workers.begun["b"]
        await asyncio.sleep(1.0)
        assert states(made)["b"] == "unloaded"
        assert workers.scaled == []
        workers.ghosts.add("a")
        await asyncio.sleep(1.0)
        assert states(made)["a"] == "unloaded", "keys of a process that is gone, or of another graph"


@virtual
async def test_preloaded_models_are_there_and_loads_by_hand_are_answered() -> None:
    workers = Workers()
    async with keeper(workers, Budget(models=2), a={"preload": True}, b={}, c={}) as (ref, made):
        await asyncio.sleep(5.0)
        assert states(made) == {"a": "ready", "b": "unloaded", "c": "unloaded"}
        await ref.ask(Load("b"), timeout=60)
        await ref.ask(Load("c"), timeout=60)
        assert states(made) == {"a": "unloaded", "b": "ready", "c": "ready"}
        begun = asyncio.ensure_future(ref.ask(Load("a"), timeout=60))
        await asyncio.sleep(1.0)
        assert states(made)["a"] == "loading"
        assert await ref.ask(Unload("a"), timeout=1)
        with pytest.raises(Overloaded, match="it was unloaded"):
            await begun


@virtual
async def test_whoever_waits_at_the_end_is_told() -> None:
    async with keeper(Workers(start=1000.0)) as (ref, _):
        asked = asyncio.ensure_future(ref.ask(Claim("a", "1"), timeout=60))
        await asyncio.sleep(1.0)
        await ref.system.root.stop_child("models")
        with pytest.raises((Overloaded, ActorUnreachable)):
            await asked


@virtual
async def test_a_worker_that_has_gone_and_is_still_listed_is_not_taken_for_the_next_one() -> None:
    workers = Workers()
    async with keeper(workers) as (ref, made):
        claim = Claim("a", "1")
        await ref.ask(claim, timeout=60)
        ref.send_nowait(Release(claim))
        workers.ghosts = {"a"}
        assert await ref.ask(Unload("a"), timeout=1)
        await asyncio.sleep(0.5)
        assert (workers.begun, states(made)["a"]) == ({}, "draining")
        again = asyncio.ensure_future(ref.ask(Claim("a", "2"), timeout=60))
        await asyncio.sleep(0.5)
        workers.ghosts = set()
        await asyncio.sleep(0.5)
        assert (again.done(), states(made)["a"]) == (False, "loading")
        await again
        workers.ghosts = {"a"}
        await ref.ask(Unload("a"), timeout=1)
        ref.send_nowait(Release(Claim("a", "2")))
        await asyncio.sleep(LISTED + 1.0)
        assert states(made)["a"] == "unloaded", "it is listed for ever"


class Leaving(Workers):
    """A worker of `a` is on its way out, as a keeper has said that has ended since."""

    async def pool(self, component: str) -> Pool:
        if component == "a" and not self.scaled:
            return Pool(replicas=(Replica(replica=0, state="Draining"),))
        return await super().pool(component)

    async def scale(self, component: str, replicas: int) -> None:
        if component == "a" and not replicas:
            await asyncio.sleep(20.0)
        await super().scale(component, replicas)


@virtual
async def test_who_begins_anew_waits_for_workers_that_are_on_their_way_out() -> None:
    workers = Leaving()
    async with keeper(workers) as (ref, made):
        asked = asyncio.ensure_future(ref.ask(Claim("b", "1"), timeout=60))
        await asyncio.sleep(19.0)
        assert (states(made), workers.scaled) == ({"a": "draining", "b": "unloaded"}, [])
        await asked
        assert (states(made), workers.scaled) == ({"a": "unloaded", "b": "ready"}, [("a", 0), ("b", 1)])


@virtual
async def test_a_keeper_beside_another_one_decides_when_that_has_gone() -> None:
    workers = Workers(first=False)
    await workers.scale("a", 1)
    async with keeper(workers, a={"concurrency": 1}, b={"preload": True}) as (ref, made):
        await asyncio.sleep(5.0)
        claim = Claim("a", "1")
        await ref.ask(claim, timeout=1.0)
        second, other = (asyncio.ensure_future(ref.ask(Claim(*one), timeout=60)) for one in (("a", "2"), ("b", "3")))
        await asyncio.sleep(20.0)
        assert (second.done(), other.done(), workers.scaled) == (False, False, [("a", 1)])
        with pytest.raises(Overloaded, match="another process of the frontend"):
            await ref.ask(Unload("a"), timeout=1)
        workers.first = True
        await asyncio.sleep(1.0)
        assert states(made) == {"a": "ready", "b": "unloaded"}, "a request of ours runs there"
        ref.send_nowait(Release(claim))
        await second
        ref.send_nowait(Release(Claim("a", "2")))
        await other
        assert workers.scaled == [("a", 1), ("a", 0), ("b", 1)]
