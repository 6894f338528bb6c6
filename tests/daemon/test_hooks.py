"""The liveness and readiness hooks of a service, in virtual time."""

import asyncio
import logging
from typing import Any

import pytest

from dynamod.actor.testing import virtual
from dynamod.graph.hooks import Hooks
from dynamod.runtime.service_host import NotAlive, ServiceHost


class Service:
    """What its hooks say next; None is no answer at all."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)

    async def check(self) -> Any:
        said = self.says.pop(0)
        if said is None:
            await asyncio.Event().wait()
        if isinstance(said, Exception):
            raise said
        return said


class ComponentContext:
    """Takes note of what is published."""

    name = "Backend"

    def __init__(self) -> None:
        self.there = False

    def publish(self, name: str) -> None:
        self.there = True

    def withdraw(self, name: str) -> None:
        self.there = False


def host(service: Service, hooks: Hooks) -> tuple[ServiceHost, ComponentContext]:
    site = ComponentContext()
    made = ServiceHost(site)  # type: ignore[arg-type]
    made._instance, made._hooks, made._calls = service, hooks, {"generate": None}
    return made, site


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (False, r"Backend\.check\(\) says"),
        (None, r"Backend\.check\(\) did not answer within 10 s"),
        (ValueError("no pulse"), "no pulse"),
    ],
)
@virtual
async def test_not_alive_is_a_crash_with_the_reason(says: Any, why: str) -> None:
    made, _ = host(Service(True, says), Hooks(liveness=("check",)))
    started = asyncio.get_running_loop().time()
    with pytest.raises((NotAlive, ValueError), match=why):
        await made._tend(5.0)
    assert asyncio.get_running_loop().time() - started == pytest.approx(20.0 if says is None else 10.0)


@virtual
async def test_not_ready_leaves_the_registry_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    broken = ValueError("no work")
    says = [True, False, broken, broken, None, True, broken]
    made, site = host(Service(*says), Hooks(readiness=("check",)))
    seen: list[bool] = []
    with caplog.at_level(logging.INFO):
        for _ in says:
            made._set_ready(await made._is_ready())
            seen.append(site.there)
    assert seen == [True, False, False, False, False, True, False]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["Backend.check failed: the service is not ready"] * 3, "told once until it changes"
    assert sum("is not ready" in record.getMessage() for record in caplog.records) == len(errors) + 2
